package engine

import (
	"regexp"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Step is one part of an engine's start, as its own log tells it.
type Step struct {
	Name  string
	Phase functions.Phase // of the contract, in which it falls
}

// logMark is a line with which a step begins, and the one before it ends. Marks
// come in the order of their table: one that is behind the present step (the
// second worker says it too) is passed over.
type logMark struct {
	line *regexp.Regexp
	Step
}

// vllmMarks were read off starts of vLLM 0.32: plain and from a warm interpreter,
// with one process of workers and without, eager and compiled. The first step
// begins with the process.
var vllmMarks = []logMark{
	{nil, Step{"imports", functions.PhaseSpawn}},
	{regexp.MustCompile(`non-default args:|\] .*█.*version \d`), Step{"engine", functions.PhaseSpawn}},
	{regexp.MustCompile(`\] Starting to load model `), Step{"weights", functions.PhaseLoad}},
	{regexp.MustCompile(`\] (?:Loading weights took |Model loading took )`), Step{"warm-up", functions.PhaseWarmup}},
	{regexp.MustCompile(`\] (?:Using cache directory: .*torch_compile_cache|Dynamo bytecode transform time|Compiling a graph |Start compiling|Warming up model for the compilation|torch\.compile (?:start|is turned on))`), Step{"compile", functions.PhaseWarmup}},
	{regexp.MustCompile(`\] (?:torch\.compile (?:takes|took) |Warming up done|Graph capturing finished)|Capturing CUDA graphs`), Step{"warm-up", functions.PhaseWarmup}},
	{regexp.MustCompile(`\] init engine \(profile, create kv cache, warmup model\) took`), Step{"app", functions.PhaseWarmup}},
}

// Steps follows a start by its log. It is pure: lines and times in. The zero
// value follows nothing.
type Steps struct {
	marks []logMark
	at    int // of marks
	began time.Time
	done  []Done
	// uncaught: a traceback goes on that began with the command
	uncaught bool
	// serving: what goes on is the first token, which no mark tells
	serving bool
}

// Done is a step with its times.
type Done struct {
	Step
	From, To time.Time
}

// NewSteps follows one that began then; an engine whose log nobody has read
// closely has no steps.
func NewSteps(e functions.Engine, began time.Time) *Steps {
	row, _ := engineRow(e)
	return &Steps{marks: row.marks, began: began}
}

// Follows reports whether there is anything to be read in the log.
func (s *Steps) Follows() bool { return len(s.marks) > 0 }

// Line takes a line of the log, read then. It reports whether a step began.
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
	s.done = append(s.done, Done{step, s.began, at})
}

// Current is the step that goes on, if the log has told of any.
func (s *Steps) Current() (Step, bool) {
	if s.at == 0 || s.serving {
		return Step{}, false
	}
	return s.marks[s.at].Step, true
}

// Done are the steps that are over.
func (s *Steps) Done() []Done { return s.done }

// Serving is told when the engine answers: what is left is its first token.
func (s *Steps) Serving(at time.Time) {
	if s.at == 0 || s.serving {
		return
	}
	s.end(at)
	s.serving, s.began, s.at = true, at, len(s.marks)
}

// End ends the present step and gives all of them, in their order; nil where
// the log told of none: then nothing is known beyond what endpoints say.
func (s *Steps) End(at time.Time) []Done {
	if s.at == 0 {
		return nil
	}
	s.end(at)
	return s.done
}

// percent of the weights that a vLLM has read.
var percent = regexp.MustCompile(`^Loading .*checkpoint shards: +(\d{1,3})% Completed`)

// Percent is how much of the weights are loaded, where a line says so.
func Percent(line string) (n int, ok bool) {
	m := percent.FindStringSubmatch(line)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil && n <= 100
}

// What a vLLM says when its start has failed: the process that computes could
// not start (its front takes its time to end after that), the arguments are
// wrong (the interpreter takes seconds to end after that), or nobody caught an
// exception: such a traceback begins with the command itself.
var (
	startFailed  = regexp.MustCompile(`\] (?:EngineCore|WorkerProc) failed to start\.|^RuntimeError: Engine core initialization failed|^vllm(?: [a-z-]+)?: error: `)
	commandFrame = regexp.MustCompile(`^  File "[^"]*/vllm", line \d+, in <module>`)
	raised       = regexp.MustCompile(`^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: |$)`)
)

// StartFailed takes a line of the log and reports whether it says that this start
// has failed, so that there is nothing to be waited for.
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
