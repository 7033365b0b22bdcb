package engine

import (
	"regexp"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Step is one part of an engine's start, as read from its log.
type Step struct {
	Name  string
	Phase functions.Phase // that it is part of
}

// logMark is a line at which a step begins and the one before it ends. Marks of
// earlier steps (a second worker writes them too) are ignored.
type logMark struct {
	line *regexp.Regexp
	Step
}

// vllmMarks are from logs of vLLM 0.32: plain starts and forks, with and without a
// worker process, eager and compiled. The first step begins with the process.
var vllmMarks = []logMark{
	{nil, Step{"imports", functions.PhaseSpawn}},
	{regexp.MustCompile(`non-default args:|\] .*█.*version \d`), Step{"engine", functions.PhaseSpawn}},
	{regexp.MustCompile(`\] Starting to load model `), Step{"weights", functions.PhaseLoad}},
	{regexp.MustCompile(`\] (?:Loading weights took |Model loading took )`), Step{"warm-up", functions.PhaseWarmup}},
	{regexp.MustCompile(`\] (?:Using cache directory: .*torch_compile_cache|Dynamo bytecode transform time|Compiling a graph |Start compiling|Warming up model for the compilation|torch\.compile (?:start|is turned on))`), Step{"compile", functions.PhaseWarmup}},
	{regexp.MustCompile(`\] (?:torch\.compile (?:takes|took) |Warming up done|Graph capturing finished)|Capturing CUDA graphs`), Step{"warm-up", functions.PhaseWarmup}},
	{regexp.MustCompile(`\] init engine \(profile, create kv cache, warmup model\) took`), Step{"app", functions.PhaseWarmup}},
}

// Steps derives the steps of a start from its log. It is pure: times are arguments.
// The zero value has no steps.
type Steps struct {
	marks []logMark
	at    int // of marks
	began time.Time
	Done  []Done
	// uncaught: the lines are a traceback that began in the command
	uncaught bool
	// serving: the present step is the first token, which has no mark
	serving bool
}

type Done struct {
	Step
	From, To time.Time
}

// NewSteps returns the steps of a start that began then; none for an engine without
// known marks.
func NewSteps(e functions.Engine, began time.Time) *Steps {
	row, _ := engineRow(e)
	return &Steps{marks: row.marks, began: began}
}

// Follows reports whether the engine's log has known marks.
func (s *Steps) Follows() bool { return len(s.marks) > 0 }

// Line processes a line of the log and reports whether a step began.
func (s *Steps) Line(line string, at time.Time) bool {
	for i := s.at + 1; i < len(s.marks); i++ {
		if s.marks[i].line.MatchString(line) {
			s.end(at)
			s.at, s.began = i, at
			return true
		}
	}
	return false
}

func (s *Steps) end(at time.Time) {
	if at.Before(s.began) {
		at = s.began
	}
	step := Step{"token", functions.PhaseWarmup}
	if !s.serving {
		step = s.marks[s.at].Step
	}
	s.Done = append(s.Done, Done{step, s.began, at})
}

// Current is the present step, if the log had any mark.
func (s *Steps) Current() (Step, bool) {
	if s.at == 0 || s.serving {
		return Step{}, false
	}
	return s.marks[s.at].Step, true
}

// Serving records that the engine serves; the last step is its first token.
func (s *Steps) Serving(at time.Time) {
	if s.at == 0 || s.serving {
		return
	}
	s.end(at)
	s.serving, s.began, s.at = true, at, len(s.marks)
}

// End ends the present step and returns all steps in order; nil if the log had no mark.
func (s *Steps) End(at time.Time) []Done {
	if s.at == 0 {
		return nil
	}
	s.end(at)
	return s.Done
}

// percent matches the progress of a vLLM's weights.
var percent = regexp.MustCompile(`^Loading .*checkpoint shards: +(\d{1,3})% Completed`)

// Percent returns how much of the weights is loaded, if the line reports it.
func Percent(line string) (n int, ok bool) {
	m := percent.FindStringSubmatch(line)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil && n <= 100
}

// Lines of a vLLM whose start has failed but whose process takes seconds to exit: the
// core could not start, the arguments are wrong, or an exception was not caught (its
// traceback begins in the command itself).
var (
	startFailed  = regexp.MustCompile(`\] (?:EngineCore|WorkerProc) failed to start\.|^RuntimeError: Engine core initialization failed|^vllm(?: [a-z-]+)?: error: `)
	commandFrame = regexp.MustCompile(`^  File "[^"]*/vllm", line \d+, in <module>`)
	raised       = regexp.MustCompile(`^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: |$)`)
)

// StartFailed processes a line of the log and reports whether the start has failed.
func (s *Steps) StartFailed(line string) bool {
	switch {
	case len(s.marks) == 0:
		return false
	case startFailed.MatchString(line):
		return true
	case commandFrame.MatchString(line):
		s.uncaught = true
	case s.uncaught && raised.MatchString(line):
		s.uncaught = false
		return true
	}
	return false
}
