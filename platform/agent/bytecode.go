package agent

import (
	"context"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// checkBytecode counts the compiled modules of an environment, and compiles them or logs
// the command that does.
func (s *forkServers) checkBytecode(ctx context.Context, spec *parentSpec) {
	have, of := spec.env.Bytecode(forkserver.SamplePackages(spec.row)...)
	if of == 0 || have*10 >= of*9 {
		return
	}
	command := strings.Join(spec.env.CompileCommand(), " ")
	if !spec.env.Writable() {
		s.log.Warn("most of an engine's modules are not compiled and the folder cannot be written: each start takes minutes", "program",
			spec.env.Program,
			"compiled", have, "of", of, "make it with", command)
		return
	}
	client, err := s.o.Keeper()
	if err != nil {
		return
	}
	s.log.Warn("most of an engine's modules are not compiled; compiling them now, starts take minutes until that is done", "program",
		spec.env.Program, "compiled", have, "of", of, "with", command)
	s.running.Go(func() { s.compileBytecode(ctx, client, spec, of) })
}

// compileBytecode compiles an environment's modules in a process of the supervisor.
func (s *forkServers) compileBytecode(ctx context.Context, client *supervisor.Client, spec *parentSpec, of int) {
	ctx, cancel := context.WithTimeout(ctx, compileTimeout)
	defer cancel()
	id := parentPrefix + "bytecode-" + strings.TrimPrefix(spec.id, parentPrefix)
	began := time.Now()
	child, err := client.Spawn(ctx, supervisor.Process{ID: id, Argv: spec.env.CompileCommand(), Env: spec.environ})
	if err != nil {
		s.log.Warn("bytecode", "error", err)
		return
	}
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case e := <-child.Exited:
			have, of := spec.env.Bytecode(forkserver.SamplePackages(spec.row)...)
			s.log.Info("bytecode compiled", "program", spec.env.Program, "compiled", have, "of", of, "took", time.Since(began).Round(time.Second),
				"exit", e.String())
			return
		case <-ticker.C:
			have, _ := spec.env.Bytecode(forkserver.SamplePackages(spec.row)...)
			s.log.Info("compiling bytecode", "program", spec.env.Program, "compiled", have, "of", of)
		case <-client.Done():
			return
		case <-ctx.Done():
			s.log.Warn("bytecode was not compiled", "program", spec.env.Program, "compiled in", time.Since(began).Round(time.Second))
			s.kill(context.WithoutCancel(ctx), id)
			return
		}
	}
}
