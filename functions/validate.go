package functions

import (
	"fmt"
	"maps"
	"math"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Problem is one thing wrong with a document: where, what, and what to do.
type Problem struct {
	Path    string `json:"path"` // such as spec.scale.min or spec.adapters[1].name
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (p Problem) String() string {
	s := p.Path + ": " + p.Message
	if p.Hint != "" {
		s += " (" + p.Hint + ")"
	}
	return s
}

// maxCount bounds numbers that are counted out somewhere, so that a slip of
// the keyboard does not become an allocation.
const maxCount = 1 << 20

type problems []Problem

func (p *problems) add(path, hint, format string, args ...any) {
	*p = append(*p, Problem{Path: path, Hint: hint, Message: fmt.Sprintf(format, args...)})
}

const labelHint = "1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit"

// checkHead checks what all kinds have in common.
func (p *problems) checkHead(version, kind, want string, meta Metadata) {
	if version != APIVersion {
		p.add("apiVersion", "write apiVersion: "+APIVersion, "%q is no version thaw knows", Clip(version))
	}
	if kind != want {
		p.add("kind", "write kind: "+want, "%q is not %s", Clip(kind), want)
	}
	if !IsLabel(meta.Name) {
		p.notLabel("metadata.name", meta.Name)
	}
	for _, k := range slices.Sorted(maps.Keys(meta.Labels)) {
		if k == "" || len(k) > 253 || !printable(k) || len(meta.Labels[k]) > 253 || !printable(meta.Labels[k]) {
			p.add("metadata.labels", "at most 253 printable characters each", "label %q is not one", Clip(k))
		}
	}
}

// notLabel adds the problem of a name that is no DNS label, with the nearest one.
func (p *problems) notLabel(path, name string) {
	if name == "" {
		p.add(path, labelHint, "a name is needed")
		return
	}
	hint := labelHint
	near := strings.Trim(notInLabels.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if len(name) > 63 {
		hint = fmt.Sprintf("it has %d characters; %s", len(name), labelHint)
	} else if IsLabel(near) {
		hint = "such as " + near + ": " + labelHint
	}
	p.add(path, hint, "%q is no DNS label", Clip(name))
}

var notInLabels = regexp.MustCompile(`[^a-z0-9-]+`)

// checkFunction checks the head of a kind of function. The name that "model": "auto" means is a
// Router's.
func (p *problems) checkFunction(version, kind, want string, meta Metadata) {
	p.checkHead(version, kind, want, meta)
	if !IsLabel(meta.Namespace) {
		p.notLabel("metadata.namespace", meta.Namespace)
	}
	if meta.Name == AutoRouter && want != KindRouter {
		p.add("metadata.name", "take another name", "%q is reserved for a Router: a request that names it lets one choose", meta.Name)
	}
}

// Validate lists the problems of m; none if it can be served. It checks the document
// alone: whether the weights exist, the loader checks.
func Validate(m *Model) []Problem {
	var p problems
	p.checkFunction(m.APIVersion, m.Kind, KindModel, m.Metadata)
	s := &m.Spec
	p.checkEngine(s)
	p.checkAdapters(s.Adapters)

	if s.Resources.GPUs < 0 || s.Resources.GPUs > maxCount {
		p.add("spec.resources.gpus", "0 or more", "%d GPUs cannot be had", s.Resources.GPUs)
	}
	p.checkSize("spec.resources.gpuMemory", s.Resources.GPUMemory)
	p.checkSize("spec.resources.memory", s.Resources.Memory)
	if c := s.Resources.CPU; c < 0 || c > 1000*maxCount {
		p.add("spec.resources.cpu", "such as 2 or 500m", "%s processors cannot be had", c)
	}
	if s.Resources.GPUMemory > 0 && s.Resources.GPUs == 0 {
		p.add("spec.resources.gpuMemory", "add gpus: 1, or leave gpuMemory out", "GPU memory is asked for, but no GPU")
	}

	p.checkCount("spec.scale.min", s.Scale.Min, 0)
	p.checkCount("spec.scale.max", s.Scale.Max, 1)
	if s.Scale.Max >= 1 && s.Scale.Min > s.Scale.Max {
		p.add("spec.scale.min", "raise max or lower min", "min %d is more than max %d", s.Scale.Min, s.Scale.Max)
	}
	p.checkCount("spec.scale.target", s.Scale.Target, 1)
	if s.Scale.Idle < 0 {
		p.add("spec.scale.idle", "such as 5m; 0 ends a replica after its last request", "%s is no time to wait", s.Scale.Idle)
	}
	p.checkCount("spec.queue.requests", s.Queue.Requests, 1)
	if s.Queue.Bytes < 1 {
		p.add("spec.queue.bytes", "such as 64Mi", "must be more than 0, or no request could wait")
	}
	p.checkDuration("spec.queue.wait", s.Queue.Wait)
	p.checkDuration("spec.deadlines.stage", s.Deadlines.Stage)
	p.checkDuration("spec.deadlines.start", s.Deadlines.Start)
	p.checkDuration("spec.deadlines.firstToken", s.Deadlines.FirstToken)
	p.checkDuration("spec.deadlines.hang", s.Deadlines.Hang)
	p.checkDuration("spec.deadlines.drain", s.Deadlines.Drain)
	p.checkCache("spec.cache", s.Cache)
	p.checkPrice("spec.price", s.Price)
	return append(p, CheckPod("spec.pod", &s.Pod)...)
}

func ValidateTeam(t *Team) []Problem {
	var p problems
	p.checkHead(t.APIVersion, t.Kind, KindTeam, t.Metadata)
	if ns := t.Metadata.Namespace; ns != "" && ns != t.Metadata.Name {
		p.add("metadata.namespace", "leave it out", "a team is a namespace itself; %q is not its name", Clip(ns))
	}
	g := t.Spec.GPUs
	p.checkCount("spec.gpus.guaranteed", g.Guaranteed, 0)
	p.checkCount("spec.gpus.max", g.Max, 0)
	if g.Max > 0 && g.Guaranteed > g.Max {
		p.add("spec.gpus.guaranteed", "raise max or lower guaranteed", "guaranteed %d is more than max %d", g.Guaranteed, g.Max)
	}
	l := t.Spec.Limits
	p.checkLimits([]limit{
		{"concurrent", l.Concurrent}, {"heldRequests", l.HeldRequests}, {"requestsPerMinute", l.RequestsPerMinute},
		{"tokensPerMinute", l.TokensPerMinute}, {"coldStartsPerHour", l.ColdStartsPerHour}, {"gpuSecondsPerDay", l.GPUSecondsPerDay},
	})
	p.checkSize("spec.limits.storeBytes", l.StoreBytes)
	p.checkAmount("spec.limits.spendPerDay", l.SpendPerDay)
	checkWord(&p, "spec.data", "class of data", t.Spec.Data, DataClasses)
	checkWord(&p, "spec.priority.max", "priority", t.Spec.Priority.Max, Priorities)
	return p
}

// limit is a number of the key limits.
type limit struct {
	key   string
	value int
}

func (p *problems) checkLimits(limits []limit) {
	for _, l := range limits {
		if l.value < 0 {
			p.add("spec.limits."+l.key, "0 means no limit", "%d is below 0", l.value)
		}
	}
}

func (p *problems) checkEngine(s *ModelSpec) {
	if s.Engine == "" {
		p.add("spec.engine", "one of "+joinWords(Engines), "an engine is needed")
	}
	switch list := joinWords(Engines); {
	case s.Engine == "" || slices.Contains(Engines, s.Engine):
	case len(Nearest(string(s.Engine), wordsOf(Engines), 1)) > 0:
		checkWord(p, "spec.engine", "engine", s.Engine, Engines)
	default:
		const other = "another server is engine: command with args: [PROGRAM, --port, \"{port}\"]; one that runs already is kind: Remote"
		p.add("spec.engine", other+"; or one of "+list, "%q is no engine thaw knows", Clip(string(s.Engine)))
	}
	if s.Engine == EngineCommand {
		if s.Health != "" && (!strings.HasPrefix(s.Health, "/") || !printable(s.Health) || strings.ContainsAny(s.Health, " #")) {
			p.add("spec.health", "such as /health", "%q is no path", Clip(s.Health))
		}
	} else if s.Health != "" {
		p.add("spec.health", "leave it out", "only a command engine has a health path of its own")
	}
	switch {
	case s.Folder == "":
	case s.Engine != EngineCommand:
		p.add("spec.folder", "leave it out", "only a command engine runs in a folder of its own")
	case !filepath.IsAbs(s.Folder) || filepath.Clean(s.Folder) != s.Folder || !printable(s.Folder):
		p.add("spec.folder", "such as /srv/engine", "%q is no absolute path", Clip(s.Folder))
	}
	p.checkProbe(s)
	p.checkArgs(s)
	switch {
	case s.Source != "":
		p.checkSource("spec.source", s.Source)
	case s.Engine != EngineCommand: // a command may bring its weights itself
		p.add("spec.source", spellings, "a source is needed")
	}
	*p = append(*p, CheckPatterns("spec.files", s.Files)...)
	*p = append(*p, CheckPatterns("spec.exclude", s.Exclude)...)
	if s.Weights != "" {
		if message, hint := CheckPattern(s.Weights); message != "" {
			p.add("spec.weights", hint, "%s", message)
		}
	}
	for key, given := range map[string]bool{"files": len(s.Files) > 0, "exclude": len(s.Exclude) > 0, "weights": s.Weights != ""} {
		if given && s.Source == "" {
			p.add("spec."+key, "give a source, or leave "+key+" out", "there is no source they could be staged from")
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		if !isEnv(k) {
			p.add("spec.env", "letters, digits and '_', not beginning with a digit", "%q is no name of an environment variable", Clip(k))
		} else if strings.ContainsRune(s.Env[k], 0) || !utf8.ValidString(s.Env[k]) {
			p.add("spec.env."+k, "", "the value holds a NUL or is not UTF-8")
		}
	}
}

// checkUniqueLabel checks the name of entry i of a list of the spec. seen holds the places of
// the names before it.
func (p *problems) checkUniqueLabel(list string, i int, name string, seen map[string]int) {
	path := fmt.Sprintf("spec.%s[%d].name", list, i)
	if !IsLabel(name) {
		p.notLabel(path, name)
	} else if first, ok := seen[name]; ok {
		p.add(path, "names of "+list+" are unique", "%q is already the name of spec.%s[%d]", name, list, first)
	} else {
		seen[name] = i
	}
}

func (p *problems) checkAdapters(list []Adapter) {
	seen := map[string]int{}
	for i, a := range list {
		at := fmt.Sprintf("spec.adapters[%d]", i)
		p.checkUniqueLabel("adapters", i, a.Name, seen)
		if a.Source == "" {
			p.add(at+".source", spellings, "a source is needed")
		} else {
			p.checkSource(at+".source", a.Source)
		}
		*p = append(*p, CheckPatterns(at+".files", a.Files)...)
		p.checkCount(at+".rank", a.Rank, 0)
	}
}

func (p *problems) checkSource(path, s string) {
	if message, hint := CheckSource(s); message != "" {
		p.add(path, hint, "%s", message)
	}
}

// Bounds of the patterns of one source.
const (
	maxPatterns = 64
	maxPattern  = 256
)

// CheckPatterns lists the problems of file patterns, which are at path.
func CheckPatterns(path string, patterns []string) []Problem {
	var p problems
	if len(patterns) > maxPatterns {
		p.add(path, fmt.Sprintf("at most %d patterns", maxPatterns), "%d patterns are too many", len(patterns))
		return p
	}
	for i, pattern := range patterns {
		if message, hint := CheckPattern(pattern); message != "" {
			p.add(fmt.Sprintf("%s[%d]", path, i), hint, "%s", message)
		}
	}
	return p
}

// CheckPattern returns what is wrong with a pattern of files to stage, and how it is
// put right; nothing when it can be used. A pattern names files below the
// source's folder, with slashes, as path.Match reads it.
func CheckPattern(s string) (message, hint string) {
	const like = "such as *.py or custom/*.py: names below the source's folder"
	switch {
	case s == "":
		return "an empty pattern names nothing", like
	case len(s) > maxPattern:
		return fmt.Sprintf("%q is longer than %d bytes", Clip(s), maxPattern), like
	case !printable(s):
		return "holds a control character or is not UTF-8", like
	case strings.HasPrefix(s, "/"):
		return fmt.Sprintf("%q is absolute", Clip(s)), like
	case strings.HasPrefix(s, ExcludePrefix):
		return fmt.Sprintf("%q begins with !", Clip(s)), "spec.exclude leaves files out"
	case strings.HasPrefix(s, WeightsPrefix):
		return fmt.Sprintf("%q begins with =", Clip(s)), "spec.weights chooses the weights; a = itself is written [=]"
	case strings.Contains(s, "\\"):
		return fmt.Sprintf("%q holds a backslash", Clip(s)),
			"folders are parted by /; a special character is meant itself in brackets, such as [*]"
	case strings.Contains(s, "://"):
		return fmt.Sprintf("%q is a URL", Clip(s)), like
	}
	for part := range strings.SplitSeq(s, "/") {
		switch {
		case part == ".." || part == ".":
			return fmt.Sprintf("%q leaves the source's folder, or could", Clip(s)), like
		case part == "":
			return fmt.Sprintf("%q has an empty part", Clip(s)), like
		case strings.Contains(part, "**"):
			return fmt.Sprintf("%q has a **, which is no pattern here", Clip(s)),
				"* stays within one folder; name each folder: *.py, custom/*.py, custom/*/*.py"
		case strings.HasPrefix(part, "."):
			return fmt.Sprintf("%q names what is hidden, and that is never staged", Clip(s)), like
		}
	}
	if strings.HasPrefix(s, "_thaw/") {
		return fmt.Sprintf("%q names what is thaw's own", Clip(s)), like
	}
	if _, err := path.Match(s, ""); err != nil {
		return fmt.Sprintf("%q is no pattern: a [ has no ]", Clip(s)), like
	}
	return "", ""
}

func (p *problems) checkCount(path string, n, minimum int) {
	if n < minimum || n > maxCount {
		p.add(path, fmt.Sprintf("between %d and %d", minimum, maxCount), "%d is out of range", n)
	}
}

func (p *problems) checkSize(path string, b Bytes) {
	if b < 0 || b == math.MaxInt64 {
		p.add(path, "such as 64Mi", "%d is no size", int64(b))
	} else if b > 0 && b < 1<<10 && strings.HasPrefix(path, "spec.resources.") {
		p.add(path, fmt.Sprintf("did you mean %dGi?", int64(b)), "%d bytes hold no engine: a number alone is bytes", int64(b))
	}
}

func (p *problems) checkDuration(path string, d Duration) {
	if d <= 0 {
		p.add(path, "such as 30s, 5m or 1h", "must be more than 0: every wait has a bound")
	}
}

// checkWord checks that word, if there is one, is of the list; noun is what the list has.
func checkWord[T ~string](p *problems, path, noun string, word T, list []T) {
	if word == "" || slices.Contains(list, word) {
		return
	}
	hint := strings.TrimLeft(DidYouMean(string(word), wordsOf(list), 1)+" one of "+joinWords(list), " ")
	p.add(path, hint, "%q is no %s thaw knows", Clip(string(word)), noun)
}

// checkWords checks that words are of the list, each once.
func checkWords[T ~string](p *problems, path, noun string, words, list []T) {
	for i, word := range words {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case word == "":
			p.add(at, "one of "+joinWords(list), "an empty word names nothing")
		case slices.Contains(words[:i], word):
			p.add(at, "name it once", "%q is already in this list", Clip(string(word)))
		default:
			checkWord(p, at, noun, word, list)
		}
	}
}

func wordsOf[T ~string](list []T) []string {
	return ConvertAll(list, func(w T) string { return string(w) })
}

func joinWords[T ~string](list []T) string { return strings.Join(wordsOf(list), ", ") }

func isEnv(s string) bool {
	return s != "" && len(s) <= 255 && strings.Trim(s, lettersAndDigits+"_") == "" && (s[0] < '0' || s[0] > '9')
}

// printable reports whether s fits in one line of a log.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
