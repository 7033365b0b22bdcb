package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/sizer"
)

// announceProblems logs each problem of a file of functions when it begins, and makes an
// event of it. An event of a function shows its problem to the function's team; of a file
// that serves none, everybody sees the name alone.
func (s *server) announceProblems(now catalog.Problems) {
	before := s.problems
	s.problems = map[catalog.Problem]bool{}
	said := map[string]bool{}
	for _, p := range now {
		s.problems[p] = true
		if before[p] {
			continue
		}
		if p.Warning {
			s.log.Warn("file of functions", "problem", p.Error())
			continue
		}
		serving := s.catalog.FunctionsOf(p.File)
		s.log.Error("invalid file of functions", "problem", p.Error(), "serving_as_before", len(serving))
		event := functions.Event{Kind: "file_refused", Reason: "invalid"}
		for _, name := range serving {
			event.Message = p.Error()
			if wrong := s.catalog.FileProblem(name); wrong != "" {
				event.Message += "; the version before it serves on"
			}
			s.backend.PublishEvent(event, name)
		}
		if len(serving) == 0 && !said[p.File] {
			said[p.File] = true
			event.Message = filepath.Base(p.File) + " is not used: thaw's log says what is wrong in it"
			s.backend.PublishEvent(event, functions.Name{})
		}
	}
	if len(before) > 0 && len(now) == 0 {
		s.log.Info("every file of functions is used again")
	}
}

// runSizes works out the resources that files in the folder of functions leave out, once a
// node has said what GPUs it has.
func (s *server) runSizes(ctx context.Context) error {
	for len(s.backend.Nodes()) == 0 {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
	return ignoreCancel(s.sized.Run(ctx, s.sizes, sizer.FolderEvents{
		Reread: s.catalog.Reread,
		Report: func(name functions.Name, text string, known bool) {
			event := functions.Event{Kind: "resources", Reason: "worked_out", Message: text}
			if !known {
				event.Reason = "not_known"
			}
			s.backend.PublishEvent(event, name)
		},
	}))
}
