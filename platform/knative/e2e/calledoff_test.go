package e2e

import "context"

// calledOff cancels a start without waiting requests: its pod ends while weights are still
// being staged, long before the idle time, and the next request starts it again.
func calledOff(s *space) {
	s.deployed(s.tiny("tiny", "deadlines: {start: 2m, stage: 2m}", "scale: {idle: 10m}"))
	revision := s.revision("tiny")
	blob := s.ns + "/tiny/model.safetensors"
	open := s.stall(blob)
	defer open()
	ctx, leave := context.WithCancel(s.Context())
	defer leave()
	call := make(chan answer, 1)
	go func() { call <- s.do(ctx, "", "/v1/chat/completions", chat(s.ns+"/tiny", 8, false)) }()
	s.until("its weights are asked for, and a pod is wanted", func() (bool, string) {
		want, _, saw := s.scale(revision)
		return want == 1 && s.stalled(blob), saw
	})
	leave()
	if a := <-call; a.err == nil {
		s.Fatalf("who has left was answered: %s", a)
	}
	s.atZero(revision)
	open()
	s.must("a call after it", s.byModel("tiny", 8, false))
}
