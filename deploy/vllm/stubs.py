"""Writes empty stand-ins for the CUDA libraries that torch is linked with.

    python stubs.py SITE-PACKAGES

torch from the package index is the CUDA build, and its loader wants libraries of
several gigabytes, of which a run without a GPU calls nothing. A stand-in lies in
torch/lib, where torch looks first, and has every symbol that torch's libraries
want of it, under the version they want: Python binds all symbols of an extension
module when it loads it, so an empty library would not do. Each function returns
1, an error to all of these libraries. Needs gcc and readelf.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

# Libraries that are stood in for, if they are missing.
CUDA = re.compile(r"lib(cu|nv|nccl)")
# These come as packages, small enough to be installed.
REAL = ("libcudart.so", "libcupti.so", "libcuda.so")
# Whose symbol it is, where the symbol has no version that says so.
PREFIXES = (
    ("nccl", "libnccl.so"), ("cublasLt", "libcublasLt.so"), ("cublas", "libcublas.so"), ("cudnn", "libcudnn.so"),
    ("cusparseLt", "libcusparseLt.so"), ("cusparse", "libcusparse.so"), ("cufft", "libcufft.so"), ("curand", "libcurand.so"),
    ("nvrtc", "libnvrtc.so"), ("cuFile", "libcufile.so"), ("nvshmem", "libnvshmem_host.so"), ("cusolver", "libcusolver.so"),
)
# The only datum among functions, and a size that is enough.
DATA = {"nvshmemi_device_only_state": 65536}


def readelf(flags, file):
    return subprocess.run(["readelf", flags, "-W", file], check=True, capture_output=True, text=True).stdout.splitlines()


def needs(file):
    """The libraries that a file is linked with."""
    return [m[1] for line in readelf("-d", file) if (m := re.search(r"\(NEEDED\).*\[(.+)\]", line))]


def version_files(file):
    """Which library each version of a wanted symbol belongs to."""
    of, library = {}, ""
    for line in readelf("-V", file):
        if m := re.search(r"File: (\S+)", line):
            library = m[1]
        elif m := re.search(r"Name: (\S+)\s+Flags", line):
            of.setdefault(m[1], library)
    return of


def symbols(file):
    """(name, version, defined here, weak) of each dynamic symbol."""
    for line in readelf("--dyn-syms", file):
        f = line.split()
        if len(f) >= 8 and f[0][:-1].isdigit():
            name, _, version = f[7].partition("@")
            yield name, version.lstrip("@"), f[6] != "UND", f[4] == "WEAK"


def wanted(folder, installed):
    """What the libraries of a folder want: {library: {version: {symbol}}}."""
    missing, defined, wants = set(), set(), {}
    for file in folder.glob("lib*.so"):
        if file.stat().st_size < 20_000 or "nvrtc" in file.name:
            continue
        missing.update(n for n in needs(file) if CUDA.match(n) and not n.startswith(REAL) and n not in installed)
        of = version_files(file)
        for name, version, here, weak in symbols(file):
            if here:
                defined.add(name)
            elif not weak:
                wants[name] = (of.get(version), version)
    out = {library: defaultdict(set) for library in missing}
    for name, (library, version) in wants.items():
        if not version and name in defined:
            continue
        if library is None:
            guess = next((so for prefix, so in PREFIXES if name.startswith(prefix)), None)
            library = next((m for m in missing if guess and m.startswith(guess + ".")), None)
        if library in out:
            out[library][version].add(name)
    return out


def write(library, versions, folder, scratch):
    """Links one stand-in."""
    source = ["\t.text"]
    for name in sorted(set().union(*versions.values())):
        if size := DATA.get(name):
            source += [f"\t.data\n\t.globl {name}\n\t.type {name},@object\n\t.size {name},{size}\n{name}:\n\t.zero {size}\n\t.text"]
        else:
            source += [f"\t.globl {name}\n\t.type {name},@function\n{name}:\n\tmov $1,%eax\n\tret"]
    source += ['\t.section .note.GNU-stack,"",@progbits', ""]
    (scratch / "stub.S").write_text("\n".join(source))
    (scratch / "stub.map").write_text("\n".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};" for v, n in versions.items() if v))
    script = [f"-Wl,--version-script={scratch / 'stub.map'}"] if any(versions) else []
    subprocess.run(
        ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{library}", *script, "-o", folder / library, scratch / "stub.S"], check=True
    )


def main():
    site = pathlib.Path(sys.argv[1])
    folder = site / "torch" / "lib"
    libraries = wanted(folder, {p.name for p in site.glob("nvidia/*/lib/*.so*")})
    with tempfile.TemporaryDirectory() as scratch:
        for library, versions in sorted(libraries.items()):
            write(library, versions, folder, pathlib.Path(scratch))
    print(f"{len(libraries)} stand-ins for CUDA libraries, {sum(len(n) for v in libraries.values() for n in v.values())} symbols")


main()
