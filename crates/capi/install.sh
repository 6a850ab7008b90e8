#!/bin/sh
# Installs libtrapline for C programs: install.sh PREFIX [BUILD], after cargo build --release -p trapline-capi.
# BUILD: the folder with libtrapline_capi.so; else the workspace's own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:?usage: install.sh PREFIX [BUILD]}
build=${2:-$here/../../target/release}
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
prefix=$(cd "$prefix" && pwd)
cp "$here/include/trapline.h" "$prefix/include/"
cp "$build/libtrapline_capi.a" "$prefix/lib/libtrapline.a"
cp "$build/libtrapline_capi.so" "$prefix/lib/libtrapline.so.0"
ln -sf libtrapline.so.0 "$prefix/lib/libtrapline.so"
sed "s|@prefix@|$prefix|" "$here/trapline.pc.in" > "$prefix/lib/pkgconfig/trapline.pc"
