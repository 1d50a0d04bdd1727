# shellcheck shell=bash
# Sourced by the scripts beside it.
#
# finding PACKAGE... installs the packages in a temporary environment, runs the Python program on its standard input
# there, and compares what the program prints with the lines of the calling script that start with "#> ". A difference
# or an exception means that the behaviour has changed: the exit status is 1.
#
# PYTHON names the interpreter that creates the environment; LAUNCH is put before the program's.
set -eu

finding() {
    script=$(realpath "$0")
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cd "$folder"
    cat >program.py
    "${PYTHON:-python3}" -m venv here
    here/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore "$@"
    # shellcheck disable=SC2086  # LAUNCH is a command with arguments
    PATH="$folder/here/bin:$PATH" PYTHONPATH='' ${LAUNCH:-} here/bin/python -W ignore program.py >printed ||
        echo "status $?" >>printed
    if ! sed -n 's/^#> //p' "$script" | diff - printed; then
        echo "$(basename "$script"): the behaviour has changed (< described, > now)"
        exit 1
    fi
    echo "$(basename "$script"): as described"
}
