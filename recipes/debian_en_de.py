"""Makes the English-German corpus of the recipe `debian_en_de` from Debian 12.

Debian's volunteers translate the descriptions of packages, manual pages, guides, help pages, and
the texts of programs and games. The game Battle for Wesnoth tells stories.

command:  python recipes/debian_en_de.py FOLDER [--data-dir PACKAGES]
          keras-transformer train debian_en_de --data-dir FOLDER
data:     93 files, 910 MB, downloaded and verified by their SHA-256. If PACKAGES is given, the
          files are read from there: packages and source code of `apt-get download NAME` and
          `apt-get source --download-only NAME`, and Translation-en and Translation-de, unpacked,
          of `apt-get update -o Acquire::Languages=en,de`
license:  LibreOffice: MPL-2.0. GNOME's help: CC-BY-SA-3.0. LinuxCNC's guide: GFDL-1.1+ and GPL-2+.
          Manual pages: GPL-3+, and the licenses of their programs. Debian's guides and games: GPL-2
          or GPL-2+. Programs: mostly GPL-2+ or GPL-3+. Descriptions of packages, GIMP's help and
          the FAQ have their own: the file usr/share/doc/NAME/copyright of each package has the
          details.
hardware: 1 CPU core
time:     3 min of CPU time, without the download
result:   335,832 pairs, 3,258,444 English words; 2,000 pairs are for validation, and 2,000 for test
"""

import argparse
import gzip
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

from debian_text import (
    Language,
    Pair,
    corpus_of,
    find_packages,
    gnome_help,
    libreoffice_help,
    program_texts,
    read_package,
    without_marks,
)

from keras_transformer.data.held_out import hold_out
from keras_transformer.data.text_files import read_lines
from keras_transformer.errors import UserError

# Path in the archive, and SHA-256. If two packages translate the same sentence, the first counts.
PACKAGES = """
libr/libreoffice/libreoffice-help-en-us_7.4.7-1+deb12u14_all.deb 8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712
libr/libreoffice/libreoffice-help-de_7.4.7-1+deb12u14_all.deb 00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f
g/gnome-user-docs/gnome-user-docs_43.0-2_all.deb 0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f
dists/bookworm/main/i18n/Translation-en.xz a3d4a0bfd8e9242810b0885eda7c1a6e05dac15b333ddbaab03ba56f2dfa4bf0
dists/bookworm/main/i18n/Translation-de.bz2 2cc65c7f8b85d8a2964c3735bbf86be79bfd3342ef8908150e268137fe5dac7f
m/manpages-l10n/manpages-de_4.18.1-1_all.deb 37d2e7ee51f22952aecec3af93647ff59194a3c74bb7a694560f49c7f7ab3978
m/manpages-l10n/manpages-de-dev_4.18.1-1_all.deb cb3d7c10977dd3c811065d89e0d912196ec5e6f2551308edb0ba72e02da838d7
m/manpages/manpages_6.03-2_all.deb efa1ba4cd19ad7baeae959c9209a7eb74be2ebb858bcabb412597bfc9f588c91
m/manpages/manpages-dev_6.03-2_all.deb 96f55cb5e26231d5567c89b692bced63825a14a2d5bd18fdf16ea2ed44eb9838
c/coreutils/coreutils_9.1-1_amd64.deb 61038f857e346e8500adf53a2a0a20859f4d3a3b51570cc876b153a2d51a3091
u/util-linux/util-linux_2.38.1-5+deb12u3_amd64.deb 8eb241ff24b2e1ee9c0373f4fc9bc728b85bf5966c1496154df7da01c0e42f34
u/util-linux/mount_2.38.1-5+deb12u3_amd64.deb 456ed2c62f884bc1133b6969d4d1eb2e6d8581076b00b4c8d700151155270a7a
u/util-linux/bsdutils_2.38.1-5+deb12u3_amd64.deb 6cae172b006a4603e710e046c3acba8d98d36748894cbe3eeda31d415fec331e
s/systemd/systemd_252.39-1~deb12u2_amd64.deb 286f879c537bfba92e59d580c075ad20ab49020244c79634656850a306dd462b
s/systemd/systemd-container_252.39-1~deb12u2_amd64.deb 9e620435592afcd65a3f19a3bab0027f3e715626294560ea8919b15af3c38021
s/systemd/udev_252.39-1~deb12u2_amd64.deb 7593d55752f2d7f20fefc5564ead8b10a536bc945f96d942e1c976f2154281cb
p/procps/procps_4.0.2-3_amd64.deb d9d0e75779cb79af869181f17b93c5c263a2b89cac6a0193c436160a4483ddc1
o/openssh/openssh-client_9.2p1-2+deb12u10_amd64.deb 42c250b8b9110382488c53c066a960bc564ddac2cb9e449f47b6cdbb5fc1cb60
f/findutils/findutils_4.9.0-4_amd64.deb 5dd86bd0af4aa73f067dfd6b8339dd868f2dd84056aa79db29d1206d4fbc5e04
t/tar/tar_1.34+dfsg-1.2+deb12u1_amd64.deb 24fb92e98c2969171f81a8b589263d705f6b1670f95d121cd74c810d4605acc3
s/shadow/passwd_4.13+dfsg1-1+deb12u2_amd64.deb fb787363372903e03627e53fd483e51dfb6861047a1e02c7d5a5f27d66546d08
g/gimp-help/gimp-help-en_2.10.34-2_all.deb a2deec76763aaf2fcdd197bac0736cdcb0770ba993d48d233329e1c92b0bfe36
g/gimp-help/gimp-help-de_2.10.34-2_all.deb 06d1f51828e0c68d373bbdd0d34c695e6405062143cd612407cd0fcf9531c199
d/debian-handbook/debian-handbook_11.20220922_all.deb 3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa
d/debian-reference/debian-reference-en_2.100_all.deb 9f31d3a17df505de09689ca255512ea58c1fc47c59bb1b0c7bf1c23362e9743f
d/debian-reference/debian-reference-de_2.100_all.deb 3b0ce65fd63e75ddf8eb07ca36293425135080e690a07e06a6ac8bc8040ef0aa
d/debian-faq/debian-faq_11.1_all.deb 427426e0cfa6888622fc1d72631071cb4b5a1f86ccde722e7820bcef284de5d0
d/debian-faq/debian-faq-de_11.1_all.deb e9a8d8234f4b182660d521f80f50cea87f797b4541005a3d64fab7777766f6de
d/developers-reference/developers-reference_12.18_all.deb 0dba82f6fa16e373f2a84ad07e7971aa9264ad2e7d2ae46b37edbc9c5fd57e2e
d/developers-reference/developers-reference-de_12.18_all.deb 281f0c2b24139e0ac83117c3e95b60458a6644fe14c82cf9ea78e87ea8c175d7
d/debmake-doc/debmake-doc_1.17-7_all.deb f562cf744d906b9255c60d659873609ed5f40d657d99c4a6f3f5c194c24507cf
i/installation-guide/installation-guide_20230508+deb12u1.tar.xz c6e62001c9539c90d9025066820ec1fc830e60d0816f47f76e17c55881323017
l/linuxcnc/linuxcnc_2.9.0~pre1+git20230208.f1270d6ed7.orig.tar.xz ac525d977c470edaab728feca30b079fbfb55d71a0495784dfcb7985a5fe1684
a/apt/apt_2.6.1.tar.xz 86b888c901fa2e78f1bf52a2aaa2f400ff82a472b94ff0ac6631939ee68fa6fd
d/dpkg/dpkg_1.21.23.tar.xz fb14678feb1129380c6ca1d0facffa56db16db0c4f497b902e703a6f369291c1
d/debconf/debconf_1.5.82.tar.xz 2d0550c4e2fb98d12055b245907978b28ee2d2b07b62e46be7523384d2ce985e
d/debhelper/debhelper_13.11.4.tar.xz 9ed846bb34f1a5501894d06c9f30e4831f9c18e0b03e1a177ceac7eb63212b42
d/devscripts/devscripts_2.23.4+deb12u2.tar.xz b713a631d884e03c118fe80a7f2a79e07d6a9d17f0e0c1a41402dcca97e5eba9
s/shadow/shadow_4.13+dfsg1.orig.tar.xz a8bb3a2aceff1cbe39d0f50687dcc1d7e7be0516a9d954d8e2eedb93f5906207
d/debian-edu-doc/debian-edu-doc_2.12.23~deb12u1.tar.xz 4c4b3f93e7127712be0e465420ebe693df0e7549b1dc464f0d0e2487e955a7e3
w/wesnoth-1.16/wesnoth-1.16-data_1.16.9-1_all.deb 1012b964bd412a6770685e3324ae3b61e176caff7846192d1ee63d55cd621e26
libr/libreoffice/libreoffice-l10n-de_7.4.7-1+deb12u14_all.deb aee22c8e3b3c0431f6e1b0bc66f757ba36c860e2651a05eb050fde4897f06548
e/evolution/evolution-common_3.46.4-2+deb12u1_all.deb 52e3a67ba3f2815fa864f600f5e3c2afd6ebc0b3487b50525df75006d4172b46
b/blender/blender-data_3.4.1+dfsg-2_all.deb 5ceaf56a49ba3ded95c751d739aeec3d19e7fad76fba5cb70666986af9303b0e
i/inkscape/inkscape_1.2.2-2+b1_amd64.deb 5e767932868c0e6909400986d5df7dbad540c9716512c1449bb7b8c6e864a3a8
v/vlc/vlc-l10n_3.0.23-0+deb12u1_all.deb 69ab8c034e2097e1050ff62e8048e0ad5e1f72991456a34d02bcecc8a8083136
k/krita/krita-l10n_5.1.5+dfsg-2+deb12u1_all.deb ad2b1d244e1021b4f56637b9e9109d5d512c8b457d13945cfae8296e294da1ac
g/gimp/gimp-data_2.10.34-1+deb12u10_all.deb 89007a69d4ef2b0440e5419e75d4112cfd1c49e97db38220d210b9f86322be7c
g/git/git_2.39.5-0+deb12u3_amd64.deb 637a85ddd6247fab13bdd0592f2f39aff04ce4dbf0655d3ab553ac359a38ce6f
f/freeciv/freeciv-data_3.0.6-1+deb12u1_all.deb 278bed022b87408ca9923aa727bef3d6c97875c811723e93ff95dded1b9b76b2
d/digikam/digikam-data_7.9.0-1_all.deb a941a504ba7bdf9d276a43ca3c2a0b2b5b74a55420d8c4b4f29d681e96cbf450
g/gnucash/gnucash-common_4.13-1_all.deb 8477b415856eb671125ee63ac6a4ee1d23efeca3de6e55e5a14c6ebb32642b31
c/cinnamon-translations/cinnamon-l10n_5.6.1-2_all.deb c03953148ebcac4b440c6cb397d5ee345760a9836ce433942dc80d2becc92d89
f/filezilla/filezilla-common_3.63.0-1+deb12u3_all.deb 2788f0f962c3a3d8eda1e76f10339b29ca5dc42dceb4ee8ad66b0c9beb6a717a
k/kicad/kicad_6.0.11+dfsg-1_amd64.deb 75612766946006cddc8fa3d7f6b35fe6146147535bf072f4539e2a41526f3231
k/kstars/kstars-data_3.6.2-2_all.deb f48e4a101ddab20f1cf35879c821f9fa2ca1b459c5ea78eef99555fe22cf35aa
k/kdenlive/kdenlive-data_22.12.3-2+deb12u2_all.deb f4ab20ba8de7e7fb7857d671592a94495f51f4e86e64869f438ddba7428b4dad
d/darktable/darktable_4.2.1-4_amd64.deb 68f31b90862a6be7c53d3df52aa32747ca22aeb75396ea3e944bd9317327ca76
g/gramps/gramps_5.1.5-1_all.deb 77875e0983e97498e91a14b4fd4033998146a582c7932a993cf268929a9fda6b
h/homebank/homebank-data_5.6.2-1_all.deb 5d8f9958d559b0495fca853d5aaa2263103ec5fa026b400294bb98e54d0c02d2
k/kmymoney/kmymoney-common_5.1.3-1_all.deb 9c42d420f6f1842b7829c9eefa6ca10a344e3840555930fbf7ccedf0865949dd
l/lyx/lyx-common_2.3.7-1_all.deb 026c74cd2391a70b4dc18a99d46b745c243b9f9bd47ddfedacfc67ae4db92557
a/audacity/audacity-data_3.2.4+dfsg-1_all.deb 82b3f46f97238f64cf0982155f81e350df4553231d2a7186e4aea2712e96a5d4
g/gnome-control-center/gnome-control-center-data_43.6-2~deb12u1_all.deb f76430c1f6db2be884bbc0e37cfa43752b49d252abb94d9cce494e8cdd8882a1
g/gcc-12/gcc-12-locales_12.2.0-14+deb12u1_all.deb a701516b5e34086f478b0a329dfd9dd8e1695e8bac5917a6b162a87719abe28f
b/binutils/binutils-common_2.40-2_amd64.deb ab314134f43a0891a48f69a9bc33d825da748fa5e0ba2bebb7a5c491b026f1a0
g/gnupg2/gnupg-l10n_2.2.40-1.1+deb12u2_all.deb c985452d06cc7b3b1044cd1eb3f2acac773836d34cafb35b5a4bebae02c1caa0
g/gnumeric/gnumeric-common_1.12.55-1_all.deb b474f0a67a781bdb41374110b54fe679c690f981dac356a9ca6260688df9f6b8
m/marble/marble-data_22.12.3-1_all.deb d2367e5a5e9aca9724d5d0aed8d987bc026894ebb20f69a50ec19770c3069555
p/plasma-workspace/plasma-workspace-data_5.27.5-2+deb12u2_all.deb 057cda470bd0baf616b3e873bcaf993018d96c8ad30b09535c487f88554e6ea2
p/plasma-desktop/plasma-desktop-data_5.27.5-2_all.deb 87f96ffedbdc0e76430fbe283a074b18128608a0d1caa9c535b994a99a280207
k/kate/kate5-data_22.12.3-1_all.deb 6da1d7621fc3539385f35351ba612b748a743458240b0db63bd54738015f473d
d/dolphin/dolphin_22.12.3-1_amd64.deb 51e87e649d1297cf17d38f6f4c679101fba01fca5b61a73d8ced48e3835355d0
k/konsole/konsole_22.12.3-1+deb12u1_amd64.deb f2b285b9bc79b207391bf0e2abbf87c1294963a8ffe0d973f9fea74a457b4f7e
o/okular/okular_22.12.3-1+deb12u1_amd64.deb b3e1ba5524b42775f397d5f066fc0a3d6261bd454b5b9b380c44fc8e40550f81
k/kmail/kmail_22.12.3-1_amd64.deb d6f3d6d3e4277a38646978c505ad6df660961b88b023997cc4fff9f4accdbdbd
a/akregator/akregator_22.12.3-1_amd64.deb 83479099d38dcfb4d4c13e2bd3bc688909fc788087e8cf2d157ce343d62879ff
k/korganizer/korganizer_22.12.3-1_amd64.deb 2761252b13168e2e2e61c62dcb95fc7d260ee4172bcd984aee36232d0a1c3fc4
s/skrooge/skrooge-common_2.29.0-1_all.deb f50ce0e4d9fa7ee5beb833c133d3ff09564f4519ce1672e63ba60c3b4f24b891
l/lokalize/lokalize_22.12.3-1_amd64.deb 7ab416eb6689bd59601cada12c225c8c832aca7322f1b9a82e33181d5f7efba2
t/tuxpaint/tuxpaint-data_0.9.28-sdl2-1_all.deb f5d0de8f9a70d2efc1241d19f26168cb8bf279f1b77abd3631e7a1a55c40e5e5
s/synaptic/synaptic_0.91.3_amd64.deb e35be88cf6594ef058d85acdfbb3216d735939bf32ce99b63d7cb455ef4ed628
a/aptitude/aptitude-common_0.8.13-5_all.deb 3310ec70a514fbebd7082059d5cebf97e82485abfcb13c9ad21858e09abadc36
d/dia/dia-common_0.97.3+git20220525-5_all.deb 3abb5e75cb3e6ab72c074df615041dd157c6f986f3e468148a371e96c01e8e25
l/liferea/liferea-data_1.14.4-3_all.deb 8fb63e6721dc1ab33ea4a853d8c24405287d38d589840c867b23cfd9c57f867d
w/wxmaxima/wxmaxima_22.12.0-1_amd64.deb 9e9c7f1267c4a71966ad3cb0f6c7122c42981263fa658532a0cfb044ca2ecad7
p/pspp/pspp_1.6.2-2_amd64.deb c3d862ccddc014229daacccd92f1862469603940578b40e19028f780799d2618
g/geany/geany-common_1.38-1_all.deb d7a84bab08b84ee1e4e5b964141a654dda414532457ed64986445c5b3dc8f966
o/orca/orca_43.1-1_all.deb 006e892197f2fbc7ed6ddbcd32c9e5e41200bc18fc0d373d4f4d6405fa57618f
u/util-linux/util-linux-locales_2.38.1-5+deb12u3_all.deb 2cb091d6fdc2f38d3ce414102877dcc7434e4d42f18b58e73708219c2b9ec18e
p/pidgin/pidgin-data_2.14.12-1_all.deb fe25279f89fdcc3b38874880f53bf205987e2048154cabc6fe529759e7d8df76
g/grisbi/grisbi-common_2.0.5-1_all.deb 8c91458779eecd8645a84f02e878d1a78f4fdbef7009d5345f0a141f7596a3f2
i/iso-codes/iso-codes_4.15.0-1_all.deb b1beb869303229c38288d4ddacfd582c91f594759b5767c9cecebd87f16ff70e
"""  # noqa: E501

GERMAN = Language("de", "[A-Za-zÄÖÜäöüß]", share=0.5, ratios=(0.4, 2.8))

# Packages and pages in English and in German, under ./usr/share.
GUIDES = (
    ("gimp-help-en", "gimp-help-de", "gimp/2.0/help/en/(.*).html", "gimp/2.0/help/de/(.*).html"),
    ("debian-handbook", "debian-handbook", "doc/.*/en-US/(.*).html", "doc/.*/de-DE/(.*).html"),
    ("debian-reference-en", "debian-reference-de", ".*/(.*).en.html", ".*/(.*).de.html"),
    ("debian-faq", "debian-faq-de", "doc/.*/(.*).en.html", "doc/.*/(.*).de.html"),
    ("developers-reference", "developers-reference-de", "dev[^/]*/([^/]*).html", ".*/de/(.*).html"),
    ("debmake-doc", "debmake-doc", "doc/.*/(.*).en.html", "doc/.*/(.*).de.html"),
)
ENGLISH_MANUALS = (
    *("manpages", "manpages-dev", "coreutils", "util-linux", "mount", "bsdutils", "systemd"),
    *("systemd-container", "udev", "procps", "openssh-client", "findutils", "tar", "passwd"),
)

Text = tuple[str, str]  # what kind of element, and its text


# 1. Formats that only German has: descriptions, gettext's sources, manual pages, guides.


def descriptions(english: Path, german: Path) -> Iterator[Pair]:
    """Aligns the descriptions of packages by their MD5, and their paragraphs by order."""

    def texts(path: Path) -> Iterator[tuple[str, list[str]]]:
        for is_empty, lines in itertools.groupby(read_lines(path), key=lambda line: not line):
            if not is_empty:
                text = "\n".join(lines)
                md5, _, body = text.partition("\nDescription-md5: ")[2].partition("\n")
                # A line with a dot ends a paragraph, and an indented line is one of its own.
                body = re.sub(r"\n( \.\n|  +)", "\n\n", body.partition(": ")[2])
                yield md5, re.sub(r"^(.*)\n", r"\1\n\n", body).split("\n\n")

    translations = dict(texts(german))
    for md5, paragraphs in texts(english):
        translated = translations.get(md5, ())
        if len(paragraphs) == len(translated):
            yield from zip(paragraphs, translated, strict=True)


def gettext_sources(package: Path) -> Iterator[Pair]:
    """Reads the .po files, without the translations that their translators marked as uncertain."""
    for _, content in read_package(package, r".*(/de/[^/]*|[/.]de)\.po"):
        for entry in content.decode().split("\n\n"):
            sides = re.findall(r'^(?:msgid|msgstr(?:\[0\])?) ((?:".*"\s*)+)', entry, re.MULTILINE)
            if len(sides) == 2 and not re.search(r"^#(, .*fuzzy|~)", entry, re.MULTILINE):
                english, german = ("".join(re.findall(r'"(.*)"', side)) for side in sides)
                yield unescaped(english), unescaped(german)


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": " "}.get(match[1], match[1]), text)


def manual_pages(english: Iterable[Path], german: Iterable[Path]) -> Iterator[Pair]:
    """Aligns the pages by their names, and the sections of a page if they have equal parts."""

    def pages(packages: Iterable[Path], folder: str) -> Iterator[tuple[str, bytes]]:
        for package in packages:
            for name, content in read_package(package, rf"./usr/share/man/{folder}man\d/.*\.gz"):
                yield name.rpartition("/")[2], gzip.decompress(content)

    translations = dict(pages(german, "de/"))
    for name, content in pages(english, ""):
        if translation := translations.pop(name, b"").decode():
            translation = translation.partition("\n.SH ÜBERSETZUNG")[0]  # who translated it
            yield from aligned(
                *(list(roff_texts(page)) for page in (content.decode(), translation))
            )


def roff_texts(page: str) -> Iterator[Text]:
    """Yields the kind and the text of each paragraph of a manual page."""
    kind, words, is_hidden = "", [], False
    page = re.sub(r"^[.']\\\".*\n", "", page, flags=re.MULTILINE)  # comments
    for line in [*page.replace("\\\n", "").split("\n"), ".PP"]:
        macro, _, rest = line.partition(" ") if line.startswith((".", "'")) else ("", "", line)
        is_hidden = macro in (".nf", ".EX", ".TS") or (
            is_hidden and macro not in (".fi", ".EE", ".TE")
        )
        if macro in (".B", ".I", ".SM", ".BR", ".RB", ".IR", ".RI", ".BI", ".IB"):
            arguments = re.findall(r'"([^"]*)"|(\S+)', rest)
            line = ("" if len(macro) == 3 and macro != ".SM" else " ").join(map("".join, arguments))
        elif macro:
            if words:
                yield kind, " ".join(words)
            kind, words, line = macro, [], rest.strip('" ') if macro in (".SH", ".SS") else ""
            if macro in (".SH", ".SS") and not line:
                continue
        if line and not is_hidden:
            words.append(roff_plain(line))
            if kind in (".TP", ".SH", ".SS"):  # the line after .TP is the term
                yield kind, " ".join(words)
                kind, words = f"after {kind}", []


def roff_plain(line: str) -> str:
    """Removes fonts and replaces the names of characters."""
    line = re.sub(r"\\f(\[\w*\]|\(..|.)|\\[&/,|^:%]|\\s[-+]?\d", "", line)
    names = {"aq": "'", "dq": '"', "lq": "“", "rq": "”", "Bq": "„", "en": "–", "em": "—", "co": "©"}
    line = re.sub(r"\\[(\[](\w\w)\]?", lambda match: names.get(match[1], "\\"), line)
    return re.sub(
        r"\\(.)", lambda match: {"e": "\\", "-": "-", "~": " "}.get(match[1], match[1]), line
    )


class GuidePage(HTMLParser):
    """A page of a guide: `texts` has its headings, paragraphs, items and cells."""

    BLOCKS = ("p", "li", "dt", "dd", "td", "th", "title", "h1", "h2", "h3", "h4", "h5", "h6")

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.texts: list[Text] = []
        self._kind, self._words, self._hidden = "", "", 0
        self.feed(content.decode(errors="replace"))

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self._hidden += tag in ("pre", "script", "style")
        if tag in (*self.BLOCKS, "div", "pre"):
            self._end()
            self._kind = tag

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("pre", "script", "style")
        if tag in (*self.BLOCKS, "div", "pre"):
            self._end()

    def _end(self) -> None:
        if self._words.strip() and self._kind in self.BLOCKS:
            self.texts.append((self._kind, self._words))
        self._words = ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._words += data


def guides(english: Path, german: Path, *patterns: str) -> Iterator[Pair]:
    """Aligns the pages by their paths, and the sections of a page if they have equal parts."""
    sides = []
    for package, pattern in zip((english, german), patterns, strict=True):
        pattern = f"./usr/share/{pattern}"
        pages = read_package(package, pattern)
        sides.append({re.fullmatch(pattern, name)[1]: content for name, content in pages})
    for name, content in sides[0].items():
        if name in sides[1]:
            yield from aligned(*(GuidePage(x).texts for x in (content, sides[1][name])))


def aligned(english: list[Text], german: list[Text]) -> Iterator[Pair]:
    """Pairs the texts of those sections that have the same kinds of elements in both languages.

    If the pages have different numbers of headings, none of their sections is used.
    """
    sides = [sections(texts) for texts in (english, german)]
    if len(sides[0]) == len(sides[1]):
        for parts in zip(*sides, strict=True):
            kinds, others = ([kind for kind, _ in part] for part in parts)
            if kinds == others:
                yield from ((x, y) for (_, x), (_, y) in zip(*parts, strict=True))


def sections(texts: list[Text]) -> list[list[Text]]:
    found: list[list[Text]] = [[]]
    for kind, text in texts:
        if re.fullmatch(r"h\d|\.S[HS]", kind):
            found.append([])
        found[-1].append((kind, text))
    return found


def without_markup(text: str) -> str:
    """Removes the markup of descriptions, guides and manual pages, and line ends."""
    text = re.sub(r"[BCFILRSE]<([^<>]*)>", r"\1", text)  # of POD: B<bold>
    text = unescape(re.sub(r"</?[a-z][^<>]*>", "", text))
    return re.sub(r"^[*•-] ", "", " ".join(text.split()))


# 2. The corpus.


def sources(found: dict[str, Path]) -> Iterator[tuple[str, Iterable[Pair], Callable[[str], str]]]:
    """Yields the name of each source, its pairs and what removes their marks."""
    files = dict(found)
    pair = files.pop("libreoffice-help-en-us"), files.pop("libreoffice-help-de")
    yield "libreoffice-help", libreoffice_help(*pair, "de"), without_markup
    yield "gnome-user-docs", gnome_help(files.pop("gnome-user-docs"), "de"), without_markup
    pair = files.pop("Translation-en"), files.pop("Translation-de")
    yield "package descriptions", descriptions(*pair), without_markup
    german = [files.pop("manpages-de"), files.pop("manpages-de-dev")]
    english = [files.pop(name) for name in ENGLISH_MANUALS]
    yield "manual pages", manual_pages(english, german), without_markup
    for *names, one, other in GUIDES:
        pair = [files.pop(name, found[name]) for name in names]
        yield names[0], guides(*pair, one, other), without_markup
    for name, file in files.items():
        if file.suffix == ".deb":
            yield name, program_texts(file, "de"), without_marks
        else:
            yield name, gettext_sources(file), without_markup


def main() -> None:
    """Reads the files, and writes training, validation and test text."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder in which to write debian.*.en and .de")
    parser.add_argument("--data-dir", type=Path, help="folder of the files (default: download)")
    parser.add_argument(
        "--held-out", type=int, default=2_000, help="pairs for validation, and test"
    )
    options = parser.parse_args()
    corpus = corpus_of(sources(find_packages(PACKAGES, options.data_dir)), GERMAN)
    held = hold_out(corpus, options.held_out, options.held_out)
    options.folder.mkdir(parents=True, exist_ok=True)
    splits = {"train": list(held.train()), "validation": held.validation, "test": held.test}
    for split, pairs in splits.items():
        for index, language in enumerate(("en", "de")):
            path = options.folder / f"debian.{split}.{language}"
            path.write_text("".join(f"{pair[index]}\n" for pair in pairs), "utf-8")
        words = sum(len(english.split()) for english, _ in pairs)
        print(f"debian.{split}: {len(pairs):,} pairs, {words:,} English words")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
