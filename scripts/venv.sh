# Sourced by the scripts beside it: `use_venv EXTRAS` makes .venv, installs this checkout with those
# extras and puts it first in PATH. A second call with the same extras costs nothing. Python compiles
# what it imports, so pip need not compile all of it.

use_venv() {
  local extras=$1 python stamp wanted
  unset PYTHONDONTWRITEBYTECODE
  for python in python3.11 python3 python; do
    command -v "$python" > /dev/null && "$python" -c \
      'import sys; sys.exit(sys.version_info < (3, 11))' && break
    python=
  done
  [ -n "$python" ] || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  PATH="$PWD/.venv/bin:$PATH"
  stamp=.venv/installed-$extras
  wanted=$(cat pyproject.toml tests/constraints.txt | cksum)
  if [ "$(cat "$stamp" 2> /dev/null)" != "$wanted" ]; then
    echo "installing keras3-transformer[$extras] into .venv"
    # Without --use-pep517, older versions of pip warn of packages that have no wheel.
    python -m pip install --quiet --no-compile --disable-pip-version-check --use-pep517 \
      --constraint tests/constraints.txt --editable ".[$extras]"
    echo "$wanted" > "$stamp"
  fi
}
