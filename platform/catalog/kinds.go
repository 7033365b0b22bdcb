package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog/foreign"
)

// Kinds are the kinds of documents in the order they are listed to people.
var Kinds = []string{functions.KindModel, functions.KindRouter, functions.KindRemote, functions.KindComposition, functions.KindTeam}

// keysNotBuilt are keys of the contracts that this program does not have, by kind. They
// are refused as such: a key is never accepted and ignored.
var keysNotBuilt = map[string][]string{
	functions.KindModel:       {"spec.queue.maxDelay", "spec.queue.batch", "spec.profiles", "spec.cache.semantic"},
	functions.KindRouter:      {"spec.cache.semantic", "spec.weights", "spec.profiles"},
	functions.KindRemote:      {"spec.keyFrom.secret"},
	functions.KindComposition: {"spec.pass", "spec.profiles", "spec.prompts"},
	"":                        {"sessions"}, // of a file of settings
}

// Document is one document of a file; one of the first five is set.
type Document struct {
	Model       *functions.Model
	Router      *functions.Router
	Remote      *functions.Remote
	Composition *functions.Composition
	Team        *functions.Team
	File        string
	Line        int

	places     Places // of what names other functions
	incomplete bool   // it has problems, or it is elsewhere: its name alone counts
}

// parts are the kind of the document, the name of its function (of a team, the team's name
// twice), and the Model, Router, Remote, Composition or Team.
func (d Document) parts() (kind string, name functions.Name, value any) {
	switch {
	case d.Router != nil:
		return functions.KindRouter, d.Router.FullName(), d.Router
	case d.Remote != nil:
		return functions.KindRemote, d.Remote.FullName(), d.Remote
	case d.Composition != nil:
		return functions.KindComposition, d.Composition.FullName(), d.Composition
	case d.Team != nil:
		return functions.KindTeam, d.Team.FullName(), d.Team
	case d.Model != nil:
		return functions.KindModel, d.Model.FullName(), d.Model
	}
	return functions.KindModel, functions.Name{}, d.Model
}

// Kind is one of Kinds.
func (d Document) Kind() string {
	kind, _, _ := d.parts()
	return kind
}

// FullName is the name of the function; of a team, its name twice.
func (d Document) FullName() functions.Name {
	_, name, _ := d.parts()
	return name
}

// Value is the Model, Router, Remote, Composition or Team.
func (d Document) Value() any {
	_, _, value := d.parts()
	return value
}

// Name is what the document is about, for messages: model TEAM/NAME or team NAME.
func (d Document) Name() string {
	if d.Team != nil {
		return "team " + d.Team.Metadata.Name
	}
	return strings.ToLower(d.Kind()) + " " + d.FullName().String()
}

// key is the same for two documents that exclude each other: functions of all kinds share
// one name space per team.
func (d Document) key() string {
	if d.Team != nil {
		return d.Name()
	}
	return d.FullName().String()
}

func (d Document) origin() string { return d.File + ":" + strconv.Itoa(d.Line) }

// Targets are what a Router or a Composition names, in its own words.
func (d Document) Targets() (targets []string) {
	switch {
	case d.Composition != nil:
		return functions.ConvertAll(d.Composition.Spec.Parts(), func(p functions.CompositionPart) string { return p.Target })
	case d.Router != nil:
		for _, r := range d.Router.Spec.Rules {
			targets = append(targets, r.To...)
		}
	}
	return targets
}

// Duplicates lists the documents whose name an earlier one has.
func Duplicates(docs []Document) (problems Problems) {
	first := map[string]Document{}
	for _, d := range docs {
		if other, twice := first[d.key()]; twice {
			problems = append(problems, d.duplicateOf(other, "", ""))
			continue
		}
		first[d.key()] = d
	}
	return problems
}

// duplicateOf is the problem of a document whose name another one has.
func (d Document) duplicateOf(other Document, more, hint string) Problem {
	what := d.Name()
	if d.Kind() != other.Kind() {
		what = fmt.Sprintf("%s: the name of a %s and a %s", d.FullName(), d.Kind(), other.Kind())
	}
	return Problem{File: d.File, Line: d.Line, Path: "metadata.name", Message: what + " is here and at " + other.origin() + more, Hint: hint}
}

// Reader decodes files. What depends on where it runs is in its fields.
type Reader struct {
	// Examples: files that intents name are read into them; else they are not looked at.
	Examples bool
	// Plain reports whether the operator allows plain HTTP to the host of a URL; nil: it
	// is not checked.
	Plain func(*url.URL) bool
	// Namespace is that of models whose file names none; "": default.
	Namespace string
}

// Decode reads the documents of one file, sets defaults and validates. file is
// for messages, and its folder is what relative sources count from. JSON is
// read too. The error is Problems, with everything that is wrong; then no
// document counts.
func Decode(file string, data []byte) ([]Document, error) { return Reader{}.Decode(file, data) }

// Decode is [Decode] with what the reader knows.
func (r Reader) Decode(file string, data []byte) ([]Document, error) {
	docs, _, err := r.decode(file, data, MaxFile)
	return docs, err
}

// decode also returns the files of examples that were read, or should have been.
func (r Reader) decode(file string, data []byte, most int) ([]Document, exampleFiles, error) {
	d := &decoder{Reader: r, file: file, most: most, examples: exampleFiles{}}
	docs, err := d.documents(data)
	if err != nil {
		docs = nil
	}
	return docs, d.examples, err
}

// Survey is [Reader.Decode] for checks that go on after a problem: it returns documents with
// problems too, which are for [Duplicates] and [CheckTargets] alone, and whether the names of
// all documents of the file are known.
func (r Reader) Survey(file string, data []byte) (docs []Document, allNamed bool, err error) {
	d := &decoder{Reader: r, file: file, most: MaxFile, examples: exampleFiles{}}
	docs, err = d.documents(data)
	return docs, !d.unnamed, err
}

// DecodeTenant is [Decode] for a text that a tenant wrote into an object of the cluster:
// it has at most MaxTenant bytes.
func DecodeTenant(name string, data []byte) ([]Document, error) {
	docs, _, err := Reader{}.decode(name, data, MaxTenant)
	return docs, err
}

// documents decodes the documents of a file; with an error, those that have a name.
func (d *decoder) documents(data []byte) (docs []Document, err error) {
	defer d.recoverProblem(&err)
	bodies := d.parse(data)
	d.unnamed = len(d.problems) > 0
	for _, body := range bodies {
		if doc, ok := d.document(body); ok {
			docs = append(docs, doc)
		} else {
			d.unnamed = true
		}
	}
	if len(d.problems) > 0 {
		return docs, d.problems
	}
	return docs, nil
}

func newDocument(file string, body ast.Node) Document {
	doc := Document{File: file}
	if p := position(body); p != nil {
		doc.Line = p.Line
	}
	return doc
}

// document reads a document by its kind; false: not even its name is known.
func (d *decoder) document(body ast.Node) (Document, bool) {
	d.begin(body)
	m, ok := mappingValues(body)
	if !ok {
		d.fail(body, "", suggestDocument(body), "%s where a document with apiVersion, kind, metadata and spec is wanted", describeNode(body))
		return Document{}, false
	}
	before := len(d.problems)
	kindKey, kindAt := d.findKind(m)
	doc := newDocument(d.file, body)
	read := func(head *functions.Head, document any) {
		head.APIVersion = "" // to be said
		d.value(body, reflect.ValueOf(document).Elem(), "")
		head.Dir, head.Origin = filepath.Dir(d.file), doc.origin()
	}
	var problems []functions.Problem
	switch d.kind {
	case functions.KindModel:
		model := functions.NewModel()
		model.Metadata.Namespace = cmp.Or(d.Namespace, model.Metadata.Namespace)
		read(&model.Head, model)
		if model.Spec.Engine == functions.EngineCommand && model.Spec.Health == "" {
			model.Spec.Health = functions.DefaultHealth
		}
		doc.Model, problems = model, functions.Validate(model)
	case functions.KindRouter:
		router := functions.NewRouter()
		read(&router.Head, router)
		router.Spec.Cold = cmp.Or(router.Spec.Cold, functions.ColdWait)
		doc.Router, problems = router, functions.ValidateRouter(router)
		if d.Examples && !d.spoils("spec.intents") && !anyBelow(problems, "spec.intents") {
			problems = append(problems, d.readExamples(router)...)
		}
	case functions.KindRemote:
		remote := functions.NewRemote()
		read(&remote.Head, remote)
		remote.Spec.Allow = cmp.Or(remote.Spec.Allow, functions.DataPublic) // an empty class ranks as secret
		doc.Remote, problems = remote, functions.ValidateRemote(remote, d.Plain)
	case functions.KindComposition:
		composition := functions.NewComposition()
		read(&composition.Head, composition)
		composition.Spec.SetDefaults()
		doc.Composition, problems = composition, functions.ValidateComposition(composition)
	case functions.KindTeam:
		team := new(functions.Team)
		read(&team.Head, team)
		doc.Team, problems = team, functions.ValidateTeam(team)
	default:
		message := "a kind is needed"
		if d.kind != "" {
			message = fmt.Sprintf("%q is no kind thaw knows", functions.Clip(d.kind))
		}
		kindAt = cmp.Or(kindAt, position(body))
		if kindKey != "kind" {
			d.add(kindAt, kindKey, "did you mean kind?", "unknown key")
		}
		d.add(kindAt, "kind", suggestKind(d.kind, m), message)
		return doc, false
	}
	if doc.Model == nil {
		doc.places = placesOf(d.places)
	}
	for _, p := range problems {
		if !d.spoils(p.Path) {
			d.add(nearestPlace(d.places, p.Path), p.Path, p.Hint, p.Message)
		}
	}
	doc.incomplete = len(d.problems) > before
	name := doc.FullName()
	return doc, functions.IsLabel(name.Team) && functions.IsLabel(name.Name)
}

// findKind sets the kind of a document, and returns its key and where that is; nil: nowhere. A
// misspelt key counts too: it is refused afterwards, beside all else that is wrong.
func (d *decoder) findKind(m []*ast.MappingValueNode) (key string, at *token.Position) {
	key = "kind"
	for _, kv := range m {
		k, _ := keyOf(kv)
		if s, ok := kv.Value.(*ast.StringNode); ok && (k == "kind" || d.kind == "" && (strings.EqualFold(k, "kind") ||
			slices.Contains(Kinds, s.Value) && len(functions.Nearest(k, []string{"kind"}, 1)) > 0)) {
			d.kind, key, at = s.Value, k, position(kv)
		}
		if k == "kind" {
			break
		}
	}
	return key, at
}

// spoils reports whether a value that did not decode may be the cause of a problem at path:
// it is there, within or around it, or beside it in an object other than the spec. What a
// Router or a Remote has at path itself is judged without its siblings.
func (d *decoder) spoils(path string) bool {
	within := func(a, b string) bool {
		return a == b || strings.HasPrefix(a, b) && (b == "" || a[len(b)] == '.' || a[len(b)] == '[')
	}
	_, given := d.places[path]
	alone := given && (d.kind == functions.KindRouter || d.kind == functions.KindRemote)
	return slices.ContainsFunc(d.failed, func(f string) bool {
		parent := f[:max(0, strings.LastIndexAny(f, ".["))]
		return within(path, f) || within(f, path) ||
			!alone && parent != "" && parent != "spec" && within(path, parent) && path[len(parent)] == '.' ||
			f == "spec.engine" && within(path, "spec") || within(f, "spec.intents") && strings.HasSuffix(path, ".intent")
	})
}

// notBuilt reports whether a key, or its value, is of the contracts but not built yet.
func (d *decoder) notBuilt(path string, value ast.Node) bool {
	if slices.Contains(keysNotBuilt[d.kind], path) {
		return true
	}
	_, mapping := mappingValues(value)
	return mapping && d.kind == functions.KindRouter && path == "spec.intents.classifier"
}

// isSecret reports whether a value at path may be a key that was written there by mistake.
func (d *decoder) isSecret(path string) bool {
	return d.kind == functions.KindRemote && strings.HasPrefix(path, "spec.keyFrom")
}

// describe names a value for people, without what may be secret.
func (d *decoder) describe(n ast.Node, path string) string {
	if _, _, scalar := scalarText(n); scalar && d.isSecret(path) {
		return "a value"
	}
	return describeNode(n)
}

// suggestKey is the hint about an unknown key of an object at a path with these fields.
func (d *decoder) suggestKey(key, path string, fields map[string]reflect.StructField) string {
	names := slices.Sorted(maps.Keys(fields))
	low := strings.ToLower(key)
	if d.kind == functions.KindRemote && (strings.HasSuffix(low, "key") || strings.HasSuffix(low, "token")) {
		return "a file holds no key: keyFrom: {env: NAME} or {file: PATH}"
	}
	if i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, key) }); i >= 0 {
		return suggestName(key, names[i:i+1])
	}
	near := len(functions.Nearest(key, names, 1)) > 0 && strings.Count(path, ".") > 1 // such as gpu in resources
	below := ""
	for _, name := range names {
		t := fields[name].Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Struct {
			if _, there := fieldsOf(t)[key]; there {
				below = "it belongs below " + name + ": indent it by two blanks more"
			}
		}
	}
	hint := foreign.SuggestKey(d.kind, key)
	switch _, spec := d.spec[key]; {
	case below != "" && (hint == "" || strings.Count(path, ".") > 1): // such as ttl in cache
		return below
	case spec && strings.Count(path, ".") > 1:
		return "it stands in spec itself: indent it by less"
	case hint != "" && !near:
		return hint
	case strings.HasPrefix(key, "//"):
		return "a comment begins with #"
	case path == "apiVersion":
		return "the folder --functions has the files of models"
	case path == "metadata.team":
		return "the team is metadata.namespace"
	}
	return suggestName(key, names)
}

// hintsOfPaths are the ways out of values of another type, where the type alone says too little.
var hintsOfPaths = map[string]string{
	"spec.engine":         "its name alone, such as engine: vllm; its arguments go into args, of engine: command the program too",
	"spec.health":         "a path that the engine answers to GET when it is ready, such as health: /health",
	"spec.source":         "one folder, repository or bucket, such as source: hf://ORG/REPO",
	"spec.weights":        "one pattern, such as weights: \"*Q4_K_M*\"",
	"spec.resources.gpus": "how many whole GPUs, such as gpus: 1; thaw chooses which",
}

// anyBelow reports whether a problem is at a path that begins with path.
func anyBelow(problems []functions.Problem, path string) bool {
	return slices.ContainsFunc(problems, func(p functions.Problem) bool { return strings.HasPrefix(p.Path, path) })
}

// suggestKind is the hint about an unknown kind, or a document without one.
func suggestKind(kind string, m []*ast.MappingValueNode) string {
	var keys []string
	for _, kv := range m {
		if key, ok := keyOf(kv); ok {
			keys = append(keys, key)
		}
	}
	hint := foreign.SuggestKind(kind, keys)
	if hint == "" && kind == "" {
		hint = suggestName(kind, Kinds) + "; " + foreign.OwnFile
	}
	return cmp.Or(hint, suggestName(kind, Kinds))
}

// suggestDocument is the hint about a file that is no YAML of keys and values.
func suggestDocument(body ast.Node) string {
	switch text, _, scalar := scalarText(body); {
	case strings.HasPrefix(text, "FROM "):
		return "a Modelfile of Ollama? " + foreign.OwnFile + "; an engine's options go into args"
	case strings.HasPrefix(text, "//"), strings.HasPrefix(text, "/*"):
		return "a comment begins with #"
	case scalar:
		return foreign.OwnFile
	}
	return "its items are documents with --- between them"
}
