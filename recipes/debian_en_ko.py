"""Makes the English-Korean corpus of the recipe `debian_en_ko` from packages of Debian 12.

The packages contain help pages and programs in English and Korean. The text is about office
programs, pictures, music, e-mail, money and games. The game Widelands tells stories, so the corpus
also has sentences in the first person.

command:  python recipes/debian_en_ko.py FOLDER [--data-dir PACKAGES]
          keras-transformer train debian_en_ko --data-dir FOLDER
data:     17 packages, 530 MB, downloaded and verified by their SHA-256. If PACKAGES is given, the
          packages are read from there, in the versions that `apt-get download NAME` gets.
license:  LibreOffice: MPL-2.0. GNOME's help: CC-BY-SA-3.0. Programs and games: GPL-2+ or GPL-3+.
          The file usr/share/doc/NAME/copyright of each package has the details.
hardware: 1 CPU core
time:     43 s, without the download
result:   101,443 pairs, 713,796 English words
"""

import argparse
from pathlib import Path

from debian_text import (
    Language,
    corpus_of,
    find_packages,
    gnome_help,
    libreoffice_help,
    program_texts,
    without_marks,
)

from keras_transformer.errors import UserError

# Path in the archive, and SHA-256. If two packages translate the same sentence, the first counts.
PACKAGES = """
libr/libreoffice/libreoffice-help-en-us_7.4.7-1+deb12u14_all.deb 8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712
libr/libreoffice/libreoffice-help-ko_7.4.7-1+deb12u14_all.deb 7ef2d854e9ed58e6bf861cfa9fa2579555233f9df874baf327fcb07ccd190669
g/gnome-user-docs/gnome-user-docs_43.0-2_all.deb 0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f
w/widelands/widelands-data_1.1-3_all.deb 0e23d645b15bcfb9e3bcae0de9bc1bdfa75a6ecb36b2e449759d6eb0b4bbd8fb
libr/libreoffice/libreoffice-l10n-ko_7.4.7-1+deb12u14_all.deb 808e24f4c5400c2a957575a36c2c99cdd71d5a05ec57123e5bbb7c041765b920
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
"""  # noqa: E501

KOREAN = Language("ko", "[가-힣]", share=0.3, ratios=(0.15, 1.5))


def main() -> None:
    """Reads the packages and writes the corpus, without two translations of one sentence."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder in which to write en-ko.tsv")
    parser.add_argument("--data-dir", type=Path, help="folder of the packages (default: download)")
    options = parser.parse_args()
    packages = find_packages(PACKAGES, options.data_dir)
    help_packages = packages.pop("libreoffice-help-en-us"), packages.pop("libreoffice-help-ko")
    sources = {"libreoffice-help": libreoffice_help(*help_packages, "ko")}
    sources["gnome-user-docs"] = gnome_help(packages.pop("gnome-user-docs"), "ko")
    sources |= {name: program_texts(package, "ko") for name, package in packages.items()}

    corpus = corpus_of(((name, pairs, without_marks) for name, pairs in sources.items()), KOREAN)
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / "en-ko.tsv").open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{english}\t{korean}\n" for english, korean in corpus)
    words = sum(len(english.split()) for english, _ in corpus)
    print(f"{file.name}: {len(corpus):,} pairs, {words:,} English words")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
