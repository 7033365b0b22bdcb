package agent

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/runtime/supervisor"
)

func (a *Agent) connectSupervisor(ctx context.Context) (*supervisor.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return supervisor.Ensure(ctx, supervisor.Start{
		Exe: a.o.Exe, Orphan: a.o.Orphan,
		Dir: a.supervisorDir(), Socket: filepath.Join(a.supervisorDir(), "supervisor.sock"),
	})
}

func (a *Agent) supervisorDir() string { return filepath.Join(a.o.Dir, "supervisor") }

func (a *Agent) setSupervisor(k *supervisor.Client, broken string) {
	a.mu.Lock()
	a.supervisor, a.degradedReason = k, broken
	close(a.supervisorChanged)
	a.supervisorChanged = make(chan struct{})
	a.mu.Unlock()
	a.pushHeartbeat()
}

// spawner starts processes with the agent's current supervisor.
type spawner Agent

func (s *spawner) client() (*supervisor.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.supervisor == nil {
		return nil, supervisor.ErrLost
	}
	return s.supervisor, nil
}

// Spawn starts a process. If the supervisor ends before it has answered, the process is
// started with the next one, if that comes within supervisorWait: an ended supervisor has
// killed what it may have started.
func (s *spawner) Spawn(ctx context.Context, p supervisor.Process) (*supervisor.Child, error) {
	child, err := s.spawn(ctx, p, nil)
	if errors.Is(err, supervisor.ErrNoParent) {
		s.forkServers.OnForkFailed(p.ForkSocket)
	}
	return child, err
}

func (s *spawner) spawn(ctx context.Context, p supervisor.Process, deadline <-chan time.Time) (*supervisor.Child, error) {
	s.mu.Lock()
	k, turn := s.supervisor, s.supervisorChanged
	s.mu.Unlock()
	err := error(supervisor.ErrLost)
	if k != nil {
		var child *supervisor.Child
		if child, err = k.Spawn(ctx, p); !errors.Is(err, supervisor.ErrLost) {
			return child, err
		}
	}
	if deadline == nil {
		deadline = time.After(supervisorWait)
	}
	select {
	case <-turn:
		return s.spawn(ctx, p, deadline)
	case <-deadline:
		return nil, err
	case <-ctx.Done():
		return nil, err
	}
}

func (s *spawner) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	k, err := s.client()
	if err != nil {
		return nil // its processes ended with it
	}
	return k.Signal(ctx, id, sig)
}

func (s *spawner) Forget(ctx context.Context, id string) error {
	k, err := s.client()
	if err != nil {
		return nil
	}
	return k.Forget(ctx, id)
}
