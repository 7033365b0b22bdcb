// Package supervisor is the process that is the parent of engines, and its client.
//
// Engines outlive agents, but not for ever. One supervisor (`thaw keep`) serves one
// agent: it forks the engines, reaps them, keeps their logs and exit codes, and
// knows nothing else; no model, no port, no state. So an agent can be killed or
// replaced by a newer one, and its successor finds every engine where it left
// it (List) with the notes the old agent gave with each (Process.Meta). If no
// agent comes back within Orphan, the supervisor ends every engine and itself.
//
// # What it promises
//
//   - The supervisor is a session of its own and a child subreaper (Linux): what an
//     engine forks and abandons becomes the supervisor's child and is reaped.
//   - Every engine leads a process group of its own; stdin is /dev/null, stdout
//     and stderr go into a pipe the supervisor reads, so an agent's death loses no
//     line, and a full disk never blocks an engine. A log is two files of at
//     most LogBytes each: PATH and PATH.1.
//   - When a leader dies, what is left of its group is killed at once (vLLM's
//     EngineCore lives on after its API server), then the exit is told.
//   - A process may be forked by a warm parent instead of executed (Process.Via,
//     package runtime/forkserver). It is an orphan at once, so it becomes the supervisor's
//     child, and goes on only when the supervisor has entered it: from there it is
//     waited for, logged and killed as any other, whatever becomes of the parent.
//     The conversation is bounded and beside; ErrNoParent tells the caller to
//     have the process executed. Linux only.
//   - What an engine leaves goes with it: its folder for temporary files
//     (Process.Scratch), and on Linux the files in /dev/shm that its group was
//     seen to use. Python's resource tracker, which would unlink them, dies with
//     the group.
//   - A supervisor that is killed takes the leaders with it (PDEATHSIG); the agent
//     sees its connection end and kills the rest of the session; failing both,
//     the next supervisor in the same folder does so when it starts.
//   - One supervisor per folder: a lock that a crash releases says who it is, so a
//     socket left behind is recognised as stale and replaced.
//
// Elsewhere than on Linux there is no subreaper and no death signal: a child
// that leaves its group is lost sight of, and after kill -9 of the supervisor the
// groups are ended by the agent alone.
//
// # Protocol
//
// A unix stream socket of mode 0600 in a folder of mode 0700; lines of JSON of
// at most MaxLine bytes. The supervisor speaks first:
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
//	-> {"seq":4,"op":"tail","id":"r1"}                    the last bytes of its log
//	-> {"seq":5,"op":"forget","id":"r1"}                  drop the record of one that has ended
//	-> {"seq":6,"op":"end","grace":2000}                  end every group, then the supervisor
//	<- {"seq":2,"error":"no process r9"}
//	<- {"exit":{"id":"r1","pid":77,"code":1,"tail":"…"}}  pushed to every client
//
// Environment and arguments of an engine go over the socket only: the supervisor's
// own argument list holds no secret, List gives no environment back, and
// nothing of it is written to disk.
package supervisor
