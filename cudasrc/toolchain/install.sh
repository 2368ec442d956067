#!/usr/bin/env bash
# Fetches the pinned CUDA compilers into a folder, the first argument, and proves
# that they compile. Needs python3 with pip, g++ and 500 MB. Where the folder is
# what the pins say, it does nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?"usage: install.sh FOLDER"}
stamp=$folder/installed.sha256
pins=$(cat "$here/requirements.txt" "$here/install.sh" "$here/trivial.cu" | sha256sum)

if [[ -f $stamp && $(<"$stamp") == "$pins" ]]; then
	exit 0
fi

fail() {
	echo "cuda-toolchain: $*" >&2
	exit 1
}
[[ $(uname -s)-$(uname -m) == Linux-x86_64 ]] || fail "the pins are for Linux on x86-64, this is $(uname -s) on $(uname -m)"
command -v g++ >/dev/null || fail "nvcc needs g++, which is not on the PATH"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed to fetch the compilers"

rm -rf "$folder"
mkdir -p "$folder"
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
	--require-hashes --no-deps --only-binary=:all: --no-compile \
	--target "$folder" -r "$here/requirements.txt" || fail "pip could not fetch what requirements.txt pins"

nvcc=$folder/nvidia/cu13/bin/nvcc
proof=$folder/trivial.fatbin
"$nvcc" -std=c++17 -fatbin -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
	-gencode arch=compute_100,code=sm_100 -gencode arch=compute_90,code=compute_90 \
	"$here/trivial.cu" -o "$proof" || fail "nvcc is there, but does not compile a trivial kernel"
targets=$("$folder/nvidia/cu13/bin/cuobjdump" -lelf -lptx "$proof" | grep -cE 'sm_(80|90|100)') ||
	fail "cuobjdump finds no target in $proof"
[[ $targets == 4 ]] || fail "a trivial kernel was compiled for $targets targets, expected 4"

echo "$pins" >"$stamp"
echo "cuda-toolchain: $("$nvcc" --version | grep -o 'V[0-9.]*$') in $folder"
