#!/usr/bin/env bash
# Install the programs that the tests use and pip cannot bring, where they are missing.
set -euo pipefail

missing=()
command -v git >/dev/null || missing+=(git)
command -v gcc >/dev/null || missing+=(gcc libc6-dev) # builds the stand-in for NVIDIA's library
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)

if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi
if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo "The tests need these programs; please install: ${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --no-install-recommends "${missing[@]}" >/dev/null
