// Package forkserver has the Python program of a warm interpreter, which imports vLLM once and
// forks engines from that at the request of package supervisor, makes its command line, and checks
// whether it is ready, fits an engine or must be replaced; it starts no process itself. There is
// one interpreter for each engine environment, which has already imported what the engine imports.
// A complete, unmodified engine is forked from it on demand, so that a start costs what is
// particular to its model and not the seconds of imports that all starts share. Parent is its state
// as an owner sees it: an agent, the shim of a pod, or the host of a node (package pods).
//
// # The parent
//
// parent.py is run by the engine's own Python, with the engine's own command as
// its argument. It imports, makes sure that it has one thread and that no
// accelerator is open, freezes what it has, and listens on a unix socket (mode
// 0600, in a folder of mode 0700). It holds no model, no key and no secret: its
// environment is what engines of it share, less what is secret (Scrub).
//
// # The fork
//
// The supervisor requests it (supervisor.Process.ForkSocket) and sends three descriptors.
// The parent forks twice, so that the engine is an orphan at once and becomes
// the child of the supervisor, which is a child subreaper: it waits for the engine,
// keeps its log and kills its group as it does with any other. The engine sends
// its process id and goes on when the supervisor has entered it; one that is not
// entered ends by itself. From there it is what executing the program would have
// made it: the program's own file run as __main__, its own arguments, folder,
// descriptors, process group and death signal, and the whole environment
// replaced. Killing the parent kills no engine, killing an engine's group leaves
// the parent.
//
// vLLM's second process, EngineCore, is forked as well, where the model file
// does not say how it is to be started (VLLM_WORKER_MULTIPROC_METHOD).
//
// # What cannot be forked
//
// Many variables are read when a module is imported, and by C libraries when
// they are loaded. The parent notes which names its imports asked for; an engine
// that has another value for one of them (Facts.DifferingVariable), or for one of the
// families that C code reads (LD_…, OMP_…, PYTHON…), is started plainly or from
// a parent of its own. So does one whose program is no Python script.
//
// All engines of a parent share its hash secret (PYTHONHASHSEED): it is chosen
// when the interpreter starts. Random numbers are seeded anew in each.
//
// # Protocol
//
// One line of JSON each way per connection; see parent.py:
//
//	-> {"op":"facts"}
//	<- {"facts":{"version":"0.32.0","python":"3.11.7","threads":1,"import_seconds":8.5,…}}
//	-> {"op":"fork","argv":["/venv/bin/vllm","serve",…],"env":["A=b"],"dir":"/data"}  and 3 descriptors
//	<- {"pid":77}                     from the engine to be
//	-> "\n"                           go on
//	<- {"error":"it has 2 threads (python, cuda-EvtHandlr)"}
package forkserver
