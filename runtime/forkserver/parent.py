"""The warm interpreter of thaw: imports what an engine imports, then forks engines.

    python parent.py SOCKET PROGRAM ROW

PROGRAM is the engine's own command (a Python script). A process that connects to the
unix socket sends one line of JSON:

    {"op": "facts"}                                      -> {"facts": {...}}
    {"op": "fork", "argv": [...], "env": [...], "dir": D}  with three descriptors
        -> {"pid": N}, sent by the engine to be; it runs after one byte of answer

With "confine": {"user": U, "groups": [...]} a fourth descriptor is a Landlock
ruleset: the engine to be applies it, and becomes user U (0: stays as it is).

Only the process that adopts our orphans (the keeper, a child subreaper) may ask
for a fork. The engine to be is re-parented to it, leads its own process group,
and then is what it would be had it been executed: PROGRAM as __main__, with its
own arguments, environment, folder and descriptors, and nothing of ours but the
modules. The parent starts no thread, opens no device and reads no model.

    python parent.py fd:3 PROGRAM ROW

is the interpreter of a node, for pods: it has no socket, and hears its owner alone,
on that descriptor. See lend and confine, and pods.md.
"""

import sys

import base64
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import signal
import socket
import struct
import time
import types

MAX_LINE = 4 << 20
TURN = 4.0  # seconds that one who connected may take
BURST, WITHIN = 16, 10.0  # so many forks in so many seconds, then no more
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 24, 38, 47
PR_SET_KEEPCAPS, CAP_DAC_READ_SEARCH, SYS_LANDLOCK_RESTRICT_SELF = 8, 2, 446
SYS_SECCOMP, SYS_KEYCTL = {"x86_64": (317, 250), "aarch64": (277, 219)}.get(os.uname().machine, (0, 0))

LIBC = ctypes.CDLL(None, use_errno=True)

# What an engine's command imports before it has read its arguments. A name that
# a version has not is skipped; one that fails would fail in engines as well.
ROWS = {
    "vllm": [
        "vllm",
        "setproctitle",
        "vllm.entrypoints.cli.main",
        "vllm.entrypoints.cli.serve",
        "vllm.entrypoints.cli.benchmark.main",
        "vllm.entrypoints.cli.collect_env",
        "vllm.entrypoints.cli.download_kernels",
        "vllm.entrypoints.cli.launch",
        "vllm.entrypoints.cli.openai",
        "vllm.entrypoints.cli.preload",
        "vllm.entrypoints.cli.run_batch",
        "vllm.entrypoints.cli.snapshot",
        "vllm.entrypoints.openai.api_server",
        "vllm.v1.engine.core",
        "vllm.v1.engine.async_llm",
    ],
    # For tests of the mechanism: nothing is imported.
    "bare": [],
}

# What is imported afterwards, in the midst of a start, by either process: found
# by an audit hook in running engines. Any of these may fail, then it is left to
# the engine. {device} is the platform's: cpu or gpu.
LATER = {
    "vllm": [
        "vllm.v1.worker.{device}_worker",
        "vllm.v1.worker.{device}_model_runner",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.executor.uniproc_executor",
        "vllm.v1.executor.multiproc_executor",
        "vllm.triton_utils.dispatcher",
        "vllm.utils.cpu_triton_utils",
        "vllm.lora.worker_manager",
        "vllm.model_executor.model_loader.default_loader",
        "vllm.model_executor.model_loader.weight_checksum",
        "vllm.model_executor.warmup.kernel_warmup",
        "vllm.v1.attention.backends.cpu_attn",
        "vllm.v1.core.sched.scheduler",
        "vllm.v1.pool.flash_maxsim",
        "vllm.distributed.elastic_ep.elastic_execute",
        "vllm.model_executor.layers.quantization.compressed_tensors.utils",
        "vllm.model_executor.layers.quantization.online.base",
        "vllm.entrypoints.launchers.run_batch",
        "vllm.entrypoints.anthropic.api_router",
        "vllm.entrypoints.cohere.api_router",
        "vllm.entrypoints.generate.api_router",
        "vllm.entrypoints.generate.generative_scoring.api_router",
        "vllm.entrypoints.generate.structured_decisions.api_router",
        "vllm.entrypoints.openai.chat_completion.api_router",
        "vllm.entrypoints.openai.completion.api_router",
        "vllm.entrypoints.openai.models.api_router",
        "vllm.entrypoints.openai.responses.api_router",
        "vllm.entrypoints.scale_out.derender.api_router",
        "vllm.entrypoints.scale_out.render.api_router",
        "vllm.entrypoints.scale_out.token_in_token_out.api_router",
        "vllm.entrypoints.serve.elastic_ep.api_router",
        "vllm.entrypoints.serve.instrumentator.metrics",
        "vllm.entrypoints.serve.instrumentator.offline_docs",
        "vllm.entrypoints.serve.lora.api_router",
        "vllm.entrypoints.serve.profile.api_router",
        "vllm.entrypoints.serve.tokenize.api_router",
        "vllm.entrypoints.serve.utils.fingerprint",
        "vllm.transformers_utils.chat_templates",
        "uvicorn.lifespan.on",
        "uvicorn.protocols.http.httptools_impl",
        "uvicorn.protocols.websockets.websockets_sansio_impl",
        # The usual models; others are imported when they are asked for.
        "vllm.model_executor.models.llama",
        "vllm.model_executor.models.qwen2",
        "vllm.model_executor.models.qwen3",
        "vllm.model_executor.models.qwen3_moe",
        "vllm.model_executor.models.gemma3",
        "vllm.model_executor.models.mixtral",
        "vllm.model_executor.models.phi3",
        "vllm.model_executor.models.deepseek_v2",
        "vllm.model_executor.models.gpt_oss",
        "transformers.models.llama.configuration_llama",
        "transformers.models.qwen2.configuration_qwen2",
        "transformers.models.qwen3.configuration_qwen3",
        "transformers.tokenization_utils_tokenizers",
    ],
}


class Watched(dict):
    """Stands below os.environ while modules are imported and notes which names
    are asked for. One who copies everything has asked for nothing."""

    def __init__(self, data):
        super().__init__(data)
        self.asked = set()
        self.coming = []

    def __iter__(self):
        self.coming = list(super().__iter__())
        return iter(list(self.coming))

    def __getitem__(self, key):
        if self.coming and self.coming[0] == key:
            del self.coming[0]
        else:
            self.coming = []
            self.asked.add(key)
        return super().__getitem__(key)


def main():
    path, program, row = sys.argv[1:4]
    began = time.monotonic()
    # Imports look where the program's own would, and not in our folder.
    sys.path[0] = os.path.dirname(os.path.realpath(program))
    # As it was given: Python itself adds to it (LC_CTYPE), for engines as well.
    with open("/proc/self/environ", "rb") as f:
        before = dict(kv.partition(b"=")[::2] for kv in f.read().split(b"\0") if kv)
    plain = os.environ._data
    os.environ._data = os.environb._data = watched = Watched(plain)
    # What is compiled here no engine compiles again.
    silent, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    missing = load(row)
    if row in AHEAD:
        AHEAD[row]()
    sys.dont_write_bytecode = silent
    plain.clear()
    plain.update(watched)
    os.environ._data = os.environb._data = plain
    asked = {os.fsdecode(k) for k in watched.asked}
    wrote = {k: v for k, v in plain.items() if before.get(k) != v}
    if t := sys.modules.get("setproctitle"):
        # The first call finds the place of the title, while there is one.
        t.setproctitle("thaw: warm " + row)
    # Libraries may have threads that they end before a fork (OpenBLAS): have
    # them ended, and see that a fork works at all.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    gc.freeze()

    owner = None
    if path.startswith("fd:"):
        owner = socket.socket(fileno=int(path[3:]))
        # Only root can look into it, and into its children before they are a pod's.
        if LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    else:
        listener = listen(path)
    facts = {
        "protocol": 1,
        "pid": os.getpid(),
        "row": row,
        "program": program,
        "python": sys.version.split()[0],
        "version": version(row),
        "import_seconds": round(time.monotonic() - began, 3),
        "modules": len(sys.modules),
        "missing": missing,
        "reads": sorted(asked),
        "env": {os.fsdecode(k): os.fsdecode(v) for k, v in before.items()},
        "files": files(row),
        "own_bytes": memory(),
        "forks": 0,
    }
    print(f"thaw: warm {row} {facts['version']} after {facts['import_seconds']:.1f} s: "
          f"{facts['modules']} modules, {len(threads())} thread, {facts['own_bytes'] >> 20} MiB", flush=True)
    job = lend(owner, facts) if owner else serve(listener, facts)
    # Only an engine comes here.
    job["row"] = row
    become(job, before, wrote, program)


def load(row):
    """Imports what a row names; the names that this installation has not."""
    missing = []
    for name in ROWS[row]:
        try:
            importlib.import_module(name)
        except ImportError as e:
            # A row is for several versions, so a name that is gone is no matter.
            # A module that is there and fails is: engines would fail as well.
            if name == row or e.name is None or not (name + ".").startswith(e.name + "."):
                raise
            missing.append(name)
    platform = getattr(sys.modules.get(row + ".platforms"), "current_platform", None)
    device = "cpu" if platform is not None and platform.is_cpu() else "gpu"
    for name in LATER.get(row, []):
        name = name.format(device=device)
        try:
            importlib.import_module(name)
        except Exception:
            missing.append(name)
    return missing


def listen(path):
    old = os.umask(0o177)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The socket has its name only when it listens.
        at = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        short = f"/proc/self/fd/{at}/"
        base = os.path.basename(path)
        for name in (base, base + ".new"):
            try:
                os.unlink(short + name)
            except FileNotFoundError:
                pass
        s.bind(short + base + ".new")
        s.listen(64)
        os.rename(short + base + ".new", short + base)
        os.close(at)
    finally:
        os.umask(old)
    return s


def threads():
    return os.listdir("/proc/self/task")


def touched():
    """Devices of an accelerator that are open: none may be."""
    out = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            to = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if to.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
            out.append(to)
    return out


def memory():
    try:
        with open("/proc/self/smaps_rollup") as f:
            for line in f:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def version(row):
    try:
        return str(getattr(sys.modules.get(row), "__version__", ""))
    except Exception:
        return ""


def files(row):
    """Files by which a changed installation is known, cheaply."""
    out = []
    for name in (row, "torch", "transformers", "numpy"):
        m = sys.modules.get(name)
        f = getattr(m, "__file__", None)
        if f:
            out += [f, os.path.dirname(f)]
            for v in ("version.py", "_version.py"):
                v = os.path.join(os.path.dirname(f), v)
                if os.path.exists(v):
                    out.append(v)
    roots = {os.path.dirname(os.path.dirname(f)) for f in out if f.endswith("__init__.py")}
    return sorted(set(out) | roots)


def unfit(forks, times):
    """Why nothing can be forked now, or ''."""
    n = threads()
    if len(n) != 1:
        names = []
        for t in n:
            try:
                with open(f"/proc/self/task/{t}/comm") as f:
                    names.append(f.read().strip())
            except OSError:
                pass
        return f"it has {len(n)} threads ({', '.join(names)})"
    if t := touched():
        return f"it holds {t[0]} open"
    now = time.monotonic()
    while times and now - times[0] > WITHIN:
        del times[0]
    if len(times) >= BURST:
        return f"{BURST} forks in {WITHIN:.0f} s are enough"
    return ""


def serve(listener, facts):
    """Answers until a fork makes this process an engine: then it returns in the
    engine what was asked for. In the parent it never returns."""
    times = []
    while True:
        conn, _ = listener.accept()
        try:
            conn.settimeout(TURN)
            pid, uid, _ = struct.unpack("3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.getuid():
                continue
            req, fds = receive(conn)
            try:
                if req.get("op") == "facts":
                    facts.update(threads=len(threads()), touched=touched(), own_bytes=memory())
                    say(conn, {"facts": facts})
                elif req.get("op") != "fork":
                    say(conn, {"error": f"no such op: {req.get('op')!r:.40}"})
                elif why := wrong(req, fds) or unfit(facts["forks"], times):
                    say(conn, {"error": why})
                else:
                    times.append(time.monotonic())
                    facts["forks"] += 1
                    sys.stdout.flush()
                    sys.stderr.flush()
                    between = os.fork()
                    if between == 0:
                        if engine(conn, req, fds, pid):
                            listener.close()
                            conn.close()
                            req["fds"], fds = fds, []
                            return req
                    os.waitpid(between, 0)
            finally:
                for fd in fds:
                    os.close(fd)
        except Exception as e:  # of one who asked badly, or is gone
            try:
                say(conn, {"error": f"{type(e).__name__}: {e}"[:500]})
            except OSError:
                pass
        finally:
            conn.close()


def wrong(req, fds):
    want = 4 if "confine" in req else 3
    if len(fds) != want:
        return f"{len(fds)} descriptors, want {want}"
    if not all(isinstance(req.get(k), list) and all(isinstance(s, str) for s in req[k]) for k in ("argv", "env")):
        return "argv and env must be lists of text"
    if not req["argv"] or not isinstance(req.get("dir"), str):
        return "no argv or no dir"
    return ""


def receive(conn):
    """One line of JSON, and the descriptors that came with its first bytes."""
    data, fds, _, _ = socket.recv_fds(conn, 1 << 16, 8)
    try:
        parts = [data]
        size = len(data)
        while data and not data.endswith(b"\n"):
            data = conn.recv(1 << 16)
            parts.append(data)
            size += len(data)
            if size > MAX_LINE:
                raise ValueError("the line is too long")
        req = json.loads(b"".join(parts))
        if not isinstance(req, dict):
            raise ValueError("want an object")
        return req, fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def say(conn, what):
    conn.sendall(json.dumps(what).encode() + b"\n")


def engine(conn, req, fds, keeper):
    """Runs in the process between. Returns True in the engine to be, once it is
    the keeper's child and was told to go on; everybody else ends here."""
    code = 126
    try:
        between = os.getpid()
        if os.fork() != 0:
            code = 0
            return False
        end = time.monotonic() + TURN
        while os.getppid() == between:
            if time.monotonic() > end:
                raise TimeoutError("the process between does not end")
            time.sleep(0.0002)
        # Only now: the end of the process between would have counted.
        if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() != keeper:
            raise PermissionError(f"orphans go to process {os.getppid()}, not to the one that asked ({keeper})")
        os.setpgid(0, 0)
        os.chdir(req["dir"])
        if "confine" in req:
            restrict(req["confine"], fds.pop())
        say(conn, {"pid": os.getpid()})
        conn.settimeout(2 * TURN)
        if conn.recv(1) == b"\n":
            code = None
            return True
        return False
    except Exception as e:
        say(conn, {"error": f"{type(e).__name__}: {e}"[:500]})
        return False
    finally:
        if code is not None:
            os._exit(code)


def restrict(plan, ruleset):
    """Confines this process as package runtime/confine does with one that is executed:
    a user of its own that may look through folders, no_new_privs, Landlock."""
    user = plan["user"]
    if user:
        must(LIBC.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl")
        os.setgroups(plan["groups"])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[1 << CAP_DAC_READ_SEARCH] * 3)
        must(LIBC.capset(header, sets), "capset")
        must(LIBC.prctl(PR_CAP_AMBIENT, 2, CAP_DAC_READ_SEARCH, 0, 0), "ambient capabilities")
        # A change of user ends both; what is executed has them.
        must(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        must(LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
    must(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    must(LIBC.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def lend(owner, facts):
    """The life of a node's interpreter. Its owner asks for a fork with one short
    word and descriptors: the connection of the pod that asked, a gate to the owner,
    the plan, and the pod's namespaces. Here nothing is read of the pod, and nothing
    of the plan: that is the child's. Returns in the engine what was asked for."""
    facts.update(threads=len(threads()), touched=touched())
    owner.send(json.dumps({"facts": facts}).encode())
    while True:
        data, fds, _, _ = socket.recv_fds(owner, 16, 16)
        try:
            if not data:
                os._exit(0)  # its owner has ended
            if data == b"facts":
                facts.update(threads=len(threads()), touched=touched(), own_bytes=memory())
                owner.send(json.dumps({"facts": facts}).encode())
                continue
            if data != b"fork" or len(fds) < 4:
                owner.send(b'{"error": "what?"}')
                continue
            if why := unfit(facts["forks"], []):
                owner.send(json.dumps({"error": why}).encode())
                continue
            facts["forks"] += 1
            sys.stdout.flush()
            sys.stderr.flush()
            between = os.fork()
            if between == 0:
                owner.close()
                job = guest(fds, facts)
                fds = []
                return job
            os.waitpid(between, 0)
            owner.send(b"{}")
        finally:
            for fd in fds:
                os.close(fd)


def guest(fds, facts):
    """Runs in the first child, and returns in the third: the engine to be, which by
    then is the pod's in all things, and has read its request. Everybody else ends
    here."""
    gate = None
    try:
        conn, gate = (socket.socket(fileno=fd) for fd in fds[:2])
        gate.settimeout(TURN)
        confine(gate, conn, fds[2], fds[3:])
        gate.close()
    except BaseException as e:
        try:
            gate.send(f"!{type(e).__name__}: {e}"[:300].encode())
        finally:
            os._exit(126)
    # From here on what is read is the pod's, and so is who reads it.
    code = 126
    try:
        conn.settimeout(TURN)
        req, got = receive(conn)
        if req.get("op") == "facts":
            say(conn, {"facts": facts})
            code = 0
        elif why := "no such op" if req.get("op") != "fork" else wrong(req, got):
            say(conn, {"error": why})
        else:
            os.chdir(req["dir"])
            say(conn, {"pid": os.getpid()})
            conn.settimeout(2 * TURN)
            if conn.recv(1) == b"\n":
                conn.close()
                gc.enable()
                req["fds"] = got
                code = None
                return req
    except Exception as e:
        try:
            say(conn, {"error": f"{type(e).__name__}: {e}"[:500]})
        except OSError:
            pass
    finally:
        if code is not None:
            os._exit(code)


def must(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def confine(gate, conn, plan, spaces):
    """Makes this process what the pod's own is. The owner looks at it from outside
    before it may go on. Between the mount namespace and the pod's user nothing is
    imported and no path is looked at: they would be the pod's, and we still root."""
    gc.disable()
    with os.fdopen(plan, "rb") as f:
        plan = json.loads(f.read())
    filters = [base64.b64decode(f) for f in plan["filters"]]
    buffers = [ctypes.create_string_buffer(f, len(f)) for f in filters]
    programs = [Filter(len(f) // 8, ctypes.addressof(b)) for f, b in zip(filters, buffers)]
    # struct __user_cap_header_struct of version 3, and no capability at all.
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    drop = [c for c in range(64) if not plan["bounding"] >> c & 1]
    null = os.open(os.devnull, os.O_RDWR)
    *others, mount = spaces
    # While it is out here the owner moves it into the pod's groups, and gives it its
    # limits, priority and processors.
    gate.send(b"out")
    if gate.recv(16) != b"in":
        raise PermissionError("told to end")
    for fd in others:
        must(LIBC.setns(fd, 0), "setns")
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        os._exit(0)
    here = os.getpid()  # in the pod's namespace
    if os.fork():
        os._exit(0)
    # An orphan of that namespace belongs to its first process, which is the one that
    # asked.
    end = time.monotonic() + TURN
    while os.getppid() == here:
        if time.monotonic() > end:
            raise TimeoutError("the process between does not end")
        time.sleep(0.0002)
    if os.getppid() != 1:
        raise PermissionError(f"orphans go to process {os.getppid()}")
    os.setsid()
    LIBC.syscall(SYS_KEYCTL, 1, None)  # a keyring of its own; no kernel need have them
    for i in range(3):
        os.dup2(null, i)
    keep = sorted((conn.fileno(), gate.fileno(), mount))
    last = 3
    for fd in [*keep, 1 << 30]:
        os.closerange(last, min(fd, 1 << 20))
        last = fd + 1
    labels = []
    for name, text in plan["labels"].items():
        labels.append((os.open("/proc/thread-self/attr/" + name, os.O_WRONLY), text.encode()))
    groups, uid, gid, umask = plan["groups"], plan["uid"], plan["gid"], plan["umask"]

    must(LIBC.setns(mount, 0), "setns")
    os.close(mount)
    for fd, text in labels:
        os.write(fd, text)
        os.close(fd)
    os.umask(umask)
    os.setgroups(groups)
    for c in drop:
        if LIBC.prctl(PR_CAPBSET_DROP, c, 0, 0, 0) != 0:
            break  # the kernel knows no more
    must(LIBC.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0), "ambient capabilities")
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    must(LIBC.capset(header, none), "capset")
    must(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    must(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    for program, flags in zip(programs, plan["flags"]):
        must(LIBC.syscall(SYS_SECCOMP, 1, flags, ctypes.byref(program)), "seccomp")
    # Said twice: the owner has to know that it is still us it looks at.
    for _ in range(2):
        gate.send(b"here")
        if gate.recv(16) != b"go":
            raise PermissionError("told to end")
    must(LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")  # as what is executed is


def become(job, before, wrote, program):
    """What executing the program would have done to this process."""
    for i, fd in enumerate(job["fds"]):
        os.dup2(fd, i)
    for fd in job["fds"]:
        os.close(fd)

    # The whole environment is the engine's own; then what imports set in it,
    # unless they would have left alone what the engine has.
    env = dict(kv.partition("=")[::2] for kv in job["env"])
    os.environ.clear()
    os.environ.update(env)
    for k, v in wrote.items():
        if os.fsdecode(k) not in env or k in before:
            os.environb[k] = v
    time.tzset()

    argv = job["argv"]
    sys.argv = list(argv)
    sys.orig_argv = [sys.executable, *argv]
    if p := sys.modules.get("multiprocessing.process"):
        p.ORIGINAL_DIR = os.getcwd()
        p.current_process().authkey = os.urandom(32)
    if t := sys.modules.get("tempfile"):
        t.tempdir = None
    if r := sys.modules.get("numpy.random"):
        r.seed()  # Python's own is seeded anew by os.fork
    if t := sys.modules.get("setproctitle"):
        t.setproctitle(" ".join([sys.executable, *argv]))
    if late := LATE.get(job["row"]):
        late(env)

    with open(program, "rb") as f:
        code = compile(f.read(), program, "exec")
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=program, __builtins__=__builtins__, __cached__=None,
                         __loader__=importlib.machinery.SourceFileLoader("__main__", program))
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def ahead_vllm():
    """What a start does before it has looked at a model: the parser of some
    hundred flags is made from the source of their classes, and kept."""
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        make_arg_parser(FlexibleArgumentParser())
    except Exception as e:
        print(f"thaw: no parser ahead: {e!r}", flush=True)


def late_vllm(env):
    # EngineCore is forked, not spawned: the second process need not import
    # everything again. Only where the start method is not configured.
    how = "VLLM_WORKER_MULTIPROC_METHOD"
    if how not in env:
        os.environ[how] = "fork"
        cpu = sys.modules.get("vllm.platforms.cpu")
        check = getattr(getattr(cpu, "CpuPlatform", None), "check_and_update_config", None)
        if check is not None:
            check = check.__func__

            def checked(cls, config):
                check(cls, config)  # says spawn, which would be right for others
                os.environ[how] = "fork"

            cpu.CpuPlatform.check_and_update_config = classmethod(checked)
    # A default of the command line that was read with the module.
    if env.get("VLLM_SERVER_DEV_MODE", "0") == "1":
        args = sys.modules.get("vllm.entrypoints.launchers.cli_args")
        for name in ("BaseFrontendArgs", "FrontendArgs"):
            field = getattr(getattr(args, name, None), "__dataclass_fields__", {}).get("log_error_stack")
            if field is not None:
                field.default = True
        made = getattr(sys.modules.get("vllm.engine.arg_utils"), "_compute_kwargs", None)
        if hasattr(made, "cache_clear"):
            made.cache_clear()
    # A model that is new here is looked at in a process of its own, which
    # imports everything for it; one that is forked has everything.
    registry = sys.modules.get("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = inspected(registry._run_in_subprocess)


def inspected(executed):
    """Runs a function in a forked process; if that fails or takes long, in one
    that is executed, which also says what is wrong."""

    def run(fn):
        import pickle
        import select

        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(r)
                from vllm.plugins import load_general_plugins

                load_general_plugins()
                with os.fdopen(w, "wb") as f:
                    f.write(pickle.dumps(fn()))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(w)
        data, end = b"", time.monotonic() + 20
        with os.fdopen(r, "rb", buffering=0) as f:
            while (left := end - time.monotonic()) > 0 and select.select([f], [], [], left)[0]:
                part = f.read(1 << 16)
                if not part:
                    break
                data += part
            else:
                os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] == 0:
            return pickle.loads(data)
        return executed(fn)

    return run


AHEAD = {"vllm": ahead_vllm}
LATE = {"vllm": late_vllm}

if __name__ == "__main__":
    main()
