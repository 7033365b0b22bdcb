// Package supervisor is the parent process of engines (`thaw keep`), which starts them (by exec or
// a fork of a warm interpreter), reaps them, keeps their logs, and outlives its agent for a while,
// and the Client by which an agent commands it; it restarts no engine.
//
// One supervisor serves one agent: it starts and reaps engines and stores their logs
// and exit codes. It knows no model, port or state. So an agent can be killed or
// replaced: its successor lists the running engines with the notes stored with each
// (Process.Meta). If no agent connects within Orphan, the supervisor ends every engine
// and itself.
//
// # Guarantees
//
//   - The supervisor is a session of its own and a child subreaper (Linux): what an
//     engine forks and leaves becomes the supervisor's child and is reaped.
//   - Every engine leads a process group of its own; stdin is /dev/null, stdout
//     and stderr are a pipe that the supervisor reads, so an agent's death loses no
//     line and a full disk never blocks an engine. A log is two files of at
//     most LogBytes each: PATH and PATH.1.
//   - When a leader dies, the rest of its group is killed (vLLM's EngineCore
//     survives its API server), then the exit is sent.
//   - A process may be forked by a warm parent instead of executed (Process.ForkSocket,
//     package runtime/forkserver). It is orphaned at once, so it becomes the supervisor's
//     child, and continues once the supervisor has registered it; the parent may
//     end. After ErrNoParent the caller has the process executed. Linux only.
//   - With a process go its folder for temporary files (Process.Scratch) and, on
//     Linux, the files in /dev/shm that its group used.
//   - When a supervisor is killed, the leaders die with it (PDEATHSIG), and the
//     agent kills the rest of the session; otherwise the next supervisor in the
//     same folder does.
//   - One supervisor per folder: it holds a lock that a crash releases, so a stale
//     socket is recognised and replaced.
//
// Other systems have no subreaper and no death signal: a child that leaves its
// group is lost, and after kill -9 of the supervisor only the agent ends the groups.
//
// # Protocol
//
// A unix stream socket of mode 0600 in a folder of mode 0700; lines of JSON of
// at most MaxLine bytes. The supervisor sends the first:
//
//	<- {"hello":{"protocol":1,"pid":41,"dir":"/data/supervisor"}}
//	-> {"seq":1,"op":"spawn","process":{"id":"r1","argv":["/bin/x"],"env":["A=b"],"meta":{…}}}
//	<- {"seq":1,"pid":77}
//	-> {"seq":7,"op":"spawn","process":{"id":"r2","argv":["/bin/x"],"via":"/data/warm/x.sock"}}
//	<- {"seq":7,"error":"no answer within 5s","no_parent":true}
//	-> {"seq":2,"op":"list"}
//	<- {"seq":2,"items":[{"id":"r1","pid":77,"log":"…","started":"…","meta":{…}}]}
//	-> {"seq":3,"op":"signal","id":"r1","signal":15}      to the whole group
//	<- {"seq":3}
//	-> {"seq":5,"op":"forget","id":"r1"}                  drop the record of one that has ended
//	-> {"seq":6,"op":"end","grace":2000}                  end every group, then the supervisor
//	<- {"seq":2,"error":"no process r9"}
//	<- {"exit":{"id":"r1","pid":77,"code":1,"tail":"…"}}  pushed to every client
//
// Environment and arguments of an engine are sent over the socket only: no argument
// list and no file holds them, and List does not return them.
package supervisor
