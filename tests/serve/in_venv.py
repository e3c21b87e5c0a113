"""Runs a test script in a virtual environment with packages from PyPI.

  in_venv.py --venv FOLDER --packages 'openai>=2,<3' anthropic --run SCRIPT [ARGUMENT ...]

The environment is made once and kept for as long as it is asked for the same packages. Where it cannot be made because there is no
venv module or PyPI cannot be reached, the exit code is 77 and the last line says why (ctest: skipped). Otherwise it is the script's.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77
NOT_REACHED = ("NewConnectionError", "ConnectTimeoutError", "ConnectionResetError", "Connection refused", "ReadTimeoutError", "Read timed out",
               "Temporary failure in name resolution", "Name or service not known", "Network is unreachable", "ProxyError", "SSLError",
               "HTTP error 5", "503 Server Error", "403 Client Error")


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, done.stdout


def make(venv, packages):
    """The environment's Python."""
    python, mark, wanted = venv / "bin/python", venv / "packages", "\n".join(packages)
    if mark.exists() and mark.read_text() == wanted:
        return python
    shutil.rmtree(venv, ignore_errors=True)
    code, output = run([sys.executable, "-m", "venv", str(venv)])
    if code != 0:
        skip(f"python3 -m venv does not work here: {output.strip().splitlines()[-1] if output.strip() else code}")
    # Most of the modules that come along are never imported, so none is compiled ahead.
    code, output = run([str(python), "-m", "pip", "install", "--no-compile", "--disable-pip-version-check", "--no-input", "--retries", "2",
                        "--timeout", "20", *packages])
    if code != 0:
        print(output)
        shutil.rmtree(venv, ignore_errors=True)
        reason = next((words for words in NOT_REACHED if words in output), None)
        if reason:
            skip(f"PyPI cannot be reached ({reason}), so {' '.join(packages)} cannot be installed")
        sys.exit("the packages could not be installed")
    mark.write_text(wanted)
    return python


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--packages", nargs="+", required=True)
    parser.add_argument("--run", nargs=argparse.REMAINDER, required=True)
    options = parser.parse_args()
    python = make(options.venv, options.packages)
    sys.exit(subprocess.run([str(python), *options.run]).returncode)


if __name__ == "__main__":
    main()
