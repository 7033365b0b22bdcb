package catalog

import (
	"cmp"
	"encoding"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog/foreign"
)

// recoverProblem makes a Problem of a panic of the parser. Deferred.
func (d *decoder) recoverProblem(err *error) {
	if p := recover(); p != nil {
		d.problems = nil
		d.add(nil, "", "", "not YAML: the parser failed: "+functions.Clip(fmt.Sprint(p)))
		*err = d.problems
	}
}

// DecodeInto reads one document strictly into a struct with json tags. It is
// for files other than models: the server's own settings. The error is
// Problems.
func DecodeInto(file string, data []byte, into any) error {
	_, err := DecodePlaced(file, data, into)
	return err
}

// Places returns the line and column of a path such as nodes[1].gpus in a file, or of
// its nearest parent; 0, 0 if there is none.
type Places func(path string) (line, column int)

// DecodePlaced is DecodeInto for callers that validate the values further: it returns
// their places. An element of a list that has a method Default()
// is given its defaults before what the file says.
func DecodePlaced(file string, data []byte, into any) (_ Places, err error) {
	d := &decoder{file: file, most: MaxFile}
	defer d.recoverProblem(&err)
	bodies := d.parse(data)
	if len(bodies) > 1 {
		d.fail(bodies[1], "", "", "one document is wanted, here begins a second")
	}
	if len(bodies) == 1 {
		d.begin(bodies[0])
		d.value(bodies[0], reflect.ValueOf(into).Elem(), "")
	}
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	return placesOf(d.places), nil
}

func placesOf(places map[string]*token.Position) Places {
	return func(path string) (int, int) {
		if p := nearestPlace(places, path); p != nil {
			return p.Line, p.Column
		}
		return 0, 0
	}
}

// decoder reads one file. The kind, and what follows it, are of the present document.
type decoder struct {
	Reader
	file     string
	most     int // bytes of the file
	problems Problems
	nodes    int
	examples exampleFiles // that were read
	unnamed  bool         // there is a document whose name is not known
	kind     string
	failed   []string // paths of values that did not decode
	places   map[string]*token.Position
	anchors  map[string]ast.Node // nil: not decoded to its end
	spec     map[string]reflect.StructField
	body     ast.Node
	skipped  []ast.Node // anchors of the document, once one is sought that was not decoded
}

func (d *decoder) begin(body ast.Node) {
	d.kind, d.failed, d.places, d.anchors = "", nil, map[string]*token.Position{}, map[string]ast.Node{}
	d.body, d.skipped = body, nil
}

func (d *decoder) add(pos *token.Position, path, hint, message string) {
	if len(d.problems) >= maxProblems {
		return
	}
	if strings.ContainsAny(message, "“”‘’") {
		hint = "the marks “ ” ‘ ’ are no quotes of YAML: write \" or ' in their place"
	}
	p := Problem{File: d.file, Path: path, Message: message, Hint: hint}
	if pos != nil {
		p.Line, p.Column = pos.Line, pos.Column
	}
	d.problems = append(d.problems, p)
}

func (d *decoder) fail(n ast.Node, path, hint, format string, args ...any) {
	if len(d.problems) >= maxProblems {
		return
	}
	d.failed = append(d.failed, path)
	d.add(position(n), path, cmp.Or(hint, hintsOfPaths[path]), fmt.Sprintf(format, args...))
}

func position(n ast.Node) *token.Position {
	if n == nil || n.GetToken() == nil {
		return nil
	}
	// A mapping's own token is the colon; its first key is what a reader
	// looks for.
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return position(m.Values[0])
		}
	case *ast.MappingValueNode:
		return position(m.Key)
	}
	return n.GetToken().Position
}

// nearestPlace is where path stands in the file, or the nearest of its parents.
func nearestPlace(places map[string]*token.Position, path string) *token.Position {
	for {
		if p := places[path]; p != nil || path == "" {
			return p
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// value decodes n into v. Every problem is added; wrong values are left out.
func (d *decoder) value(n ast.Node, v reflect.Value, path string) {
	if d.nodes++; d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.fail(n, path, "", "too many values; aliases count as what they stand for")
		}
		return
	}
	if d.places[path] == nil {
		d.places[path] = position(n)
	}
	switch x := n.(type) {
	case *ast.AnchorNode:
		name := x.Name.GetToken().Value
		d.anchors[name] = nil // until it is decoded, so that nothing can hold itself
		d.value(x.Value, v, path)
		d.anchors[name] = x.Value
		return
	case *ast.AliasNode:
		d.alias(x, v, path)
		return
	case *ast.TagNode:
		d.fail(n, path, "put text in quotes", "tags such as %s are not supported", functions.Clip(x.GetToken().Value))
		return
	}
	_, mapping := mappingValues(n)
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok && !(mapping && v.Kind() == reflect.Struct) {
		raw, _, ok := scalarText(n)
		if !ok {
			d.fail(n, path, "", "%s where %s is wanted", d.describe(n, path), describeType(v.Type()))
		} else if err := u.UnmarshalText([]byte(raw)); err != nil {
			hint := ""
			if path == "spec.scale.idle" && (strings.HasPrefix(raw, "-") || !strings.ContainsAny(raw, "0123456789")) {
				hint = "scale: {min: 1} keeps a replica always"
			}
			d.fail(n, path, hint, "%v", err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case reflect.Struct:
		m, ok := v.Addr().Interface().(*functions.Members)
		if _, mapping := mappingValues(n); ok && !mapping {
			v = reflect.ValueOf(&m.List).Elem()
			d.list(n, v, path)
			return
		}
		d.object(n, v, path)
	case reflect.Map:
		d.table(n, v, path)
	case reflect.Slice:
		d.list(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

// alias decodes what n stands for, also where its anchor is below a key that was refused.
func (d *decoder) alias(n *ast.AliasNode, v reflect.Value, path string) {
	name := n.Value.GetToken().Value
	target, decoded := d.anchors[name]
	if d.skipped == nil && !decoded {
		d.skipped = ast.Filter(ast.AnchorType, d.body)
	}
	for _, a := range d.skipped {
		if a := a.(*ast.AnchorNode); !decoded && a.Name.GetToken().Value == name && position(a).Offset < position(n).Offset {
			target = a
		}
	}
	switch {
	case target != nil:
		d.value(target, v, path)
	case decoded:
		d.fail(n, path, "write the values themselves", "what stands at the anchor &%s holds this alias of it", functions.Clip(name))
	default:
		d.fail(n, path, "", "no anchor &%s stands before this alias in its document", functions.Clip(name))
	}
}

// isNumber reports whether n is the number that is wanted, and adds a problem if not: it
// is a text, does not parse, or is out of bounds.
func (d *decoder) isNumber(n ast.Node, path, want string, isText, parses, inBounds bool) bool {
	if parses && inBounds && !isText {
		return true
	}
	hint := hintsOfPaths[path]
	switch {
	case isText && parses:
		hint = "without quotes"
	case hint == "" && want == "a whole number":
		hint = "digits alone, such as 4"
	case hint == "":
		hint = "such as 0.5"
	}
	d.fail(n, path, hint, "%s where %s is wanted", d.describe(n, path), want)
	return false
}

// scalar decodes a text, a number, true or false.
func (d *decoder) scalar(n ast.Node, v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.String:
		d.text(n, v, path)
	case reflect.Int, reflect.Int64:
		raw, isText, ok := scalarText(n)
		if n.GetToken().Type == token.StringType { // the lexer takes 08 for text
			isText = false
		}
		i, err := strconv.ParseInt(raw, 10, 64)
		if d.isNumber(n, path, "a whole number", isText, err == nil, ok && !v.OverflowInt(i)) {
			v.SetInt(i)
		}
	case reflect.Interface:
		d.anything(n, v, path)
	case reflect.Float64:
		raw, isText, ok := scalarText(n)
		if n.GetToken().Type == token.StringType { // the lexer takes 1e-3 for text
			isText = false
		}
		f, err := strconv.ParseFloat(raw, 64)
		if d.isNumber(n, path, "a number", isText, err == nil, ok && !math.IsInf(f, 0) && !math.IsNaN(f)) {
			v.SetFloat(f)
		}
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.fail(n, path, "", "%s where true or false is wanted", d.describe(n, path))
			return
		}
		v.SetBool(b.Value)
	default:
		// Only the types of this project come here; a new kind of field is
		// found by the first test that decodes it.
		panic(fmt.Sprintf("catalog: cannot decode into %s", v.Type()))
	}
}

func (d *decoder) text(n ast.Node, v reflect.Value, path string) {
	raw, isText, ok := scalarText(n)
	switch {
	case !ok:
		hint := ""
		if m, is := n.(*ast.MappingNode); is && m.IsFlowStyle && strings.Contains(path, ".args") {
			hint = foreign.BracesHint
		}
		switch _, null := n.(*ast.NullNode); {
		case null && strings.HasPrefix(path, "spec.env."):
			hint = `an empty text is ""`
		case strings.HasPrefix(path, "spec.env.") && hint == "":
			hint = "a value is text; on Kubernetes the pod can name a Secret: pods of models in deploy/docs/operations.md"
		case hint == "" && strings.HasSuffix(path, "]"):
			hint = "the text alone, such as its name"
		case hint == "" && null && hintsOfPaths[path] == "":
			hint = "a value belongs behind the colon; a key without one is left out"
		}
		d.fail(n, path, hint, "%s where text is wanted", d.describe(n, path))
	case !isText:
		hint := "put it in quotes"
		if at := hintsOfPaths[path]; at != "" {
			hint = at
		} else if !d.isSecret(path) {
			hint += fmt.Sprintf(": %q", functions.Clip(raw))
		}
		d.fail(n, path, hint, "%s where text is wanted", d.describe(n, path))
	case dashLine.MatchString(n.GetToken().Origin) && n.GetToken().Type == token.StringType:
		d.fail(n, path, "indent the dashes of a list alike", "the text goes on over a line that begins with a dash")
	default:
		v.SetString(raw)
	}
}

// dashLine matches an unquoted text whose second or later line looks like an item of a list.
var dashLine = regexp.MustCompile(`\n\s*- `)

func (d *decoder) anything(n ast.Node, v reflect.Value, path string) {
	into := func(x, empty reflect.Value) {
		if d.value(n, x, path); x.IsZero() {
			x = empty
		}
		v.Set(x)
	}
	switch x := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		into(reflect.New(reflect.TypeFor[map[string]any]()).Elem(), reflect.ValueOf(map[string]any{}))
	case *ast.SequenceNode:
		into(reflect.New(reflect.TypeFor[[]any]()).Elem(), reflect.ValueOf([]any{}))
	case *ast.BoolNode:
		v.Set(reflect.ValueOf(x.Value))
	case *ast.NullNode:
		v.SetZero()
	case *ast.IntegerNode, *ast.FloatNode:
		raw, _, _ := scalarText(n)
		if i, err := strconv.ParseInt(raw, 10, 64); err == nil {
			v.Set(reflect.ValueOf(i))
		} else if f, err := strconv.ParseFloat(raw, 64); err == nil {
			v.Set(reflect.ValueOf(f))
		} else {
			d.fail(n, path, "", "%s where a number of JSON is wanted", describeNode(n))
		}
	default:
		into(reflect.New(reflect.TypeFor[string]()).Elem(), reflect.ValueOf(""))
	}
}

// failUnlessNull adds the problem of a value that is of another shape: null keeps the default.
func (d *decoder) failUnlessNull(n ast.Node, path, hint, want string) {
	if _, null := n.(*ast.NullNode); !null {
		d.fail(n, path, hint, "%s where %s wanted", d.describe(n, path), want)
	}
}

// object decodes a mapping into a struct.
func (d *decoder) object(n ast.Node, v reflect.Value, path string) {
	fields := fieldsOf(v.Type())
	names := slices.Sorted(maps.Keys(fields))
	m, ok := mappingValues(n)
	if !ok {
		d.failUnlessNull(n, path, "its keys are "+strings.Join(names, ", "), "keys and values are")
		return
	}
	if path == "spec" {
		d.spec = fields
	}
	d.entries(m, path, func(key, at string, kv *ast.MappingValueNode) {
		f, ok := fields[key]
		if d.notBuilt(at, kv.Value) {
			d.fail(kv, at, "leave it out", "not supported yet")
			return
		}
		if !ok {
			if len(d.problems) < maxProblems { // a suggestion costs more than the key
				hint := d.suggestKey(key, at, fields)
				if _, anchor := kv.Value.(*ast.AnchorNode); anchor {
					hint = "an anchor stands at a value that is used: " + hint
				}
				d.fail(kv, at, hint, "unknown key")
				for _, meant := range functions.Nearest(key, names, 1) { // which may be missing now
					d.failed = append(d.failed, strings.TrimSuffix(at, key)+meant)
				}
			}
			return
		}
		d.value(kv.Value, v.FieldByIndex(f.Index), at)
	})
}

// fieldsOf returns the fields of a struct, those of embedded structs too, by their keys in files.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && name != "" {
			fields[name] = f
		}
	}
	return fields
}

// table decodes a mapping of text to text.
func (d *decoder) table(n ast.Node, v reflect.Value, path string) {
	m, ok := mappingValues(n)
	if !ok {
		d.failUnlessNull(n, path, "NAME: VALUE for each", "keys and values are")
		return
	}
	out := reflect.MakeMap(v.Type())
	d.entries(m, path, func(key, at string, kv *ast.MappingValueNode) {
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(kv.Value, e, at)
		out.SetMapIndex(reflect.ValueOf(key), e)
	})
	if out.Len() > 0 {
		v.Set(out)
	}
}

// entries calls each for every key, once.
func (d *decoder) entries(m []*ast.MappingValueNode, path string, each func(key, at string, kv *ast.MappingValueNode)) {
	seen := map[string]*token.Position{}
	for _, kv := range m {
		key, ok := keyOf(kv)
		if !ok {
			hint := ""
			if _, _, scalar := scalarText(kv.Key); scalar {
				hint = "put it in quotes"
			} else if _, merge := kv.Key.(*ast.MergeKeyNode); merge {
				hint = "<< is not supported: write the keys themselves"
			}
			d.fail(kv, path, hint, "%s as a key; text is wanted", describeNode(kv.Key))
			continue
		}
		at := key
		if path != "" {
			at = path + "." + key
		}
		if first, duplicate := seen[key]; duplicate {
			hint := ""
			if path == "" {
				hint = "--- stands between two documents"
			}
			d.fail(kv, at, hint, "this key is already there, on line %d", first.Line)
			continue
		}
		seen[key] = position(kv)
		if d.places[at] == nil {
			d.places[at] = position(kv)
		}
		each(key, at, kv)
	}
}

func (d *decoder) list(n ast.Node, v reflect.Value, path string) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.failUnlessNull(n, path, d.suggestList(n, v, path), "a list is")
		return
	}
	out := reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values))
	for i, e := range s.Values {
		if x, ok := out.Index(i).Addr().Interface().(interface{ Default() }); ok {
			x.Default()
		}
		d.value(e, out.Index(i), path+"["+strconv.Itoa(i)+"]")
	}
	if out.Len() > 0 {
		v.Set(out)
	}
}

// suggestList is the hint about a value of another type where a list is wanted.
func (d *decoder) suggestList(n ast.Node, v reflect.Value, path string) string {
	raw, _, ok := scalarText(n)
	if !ok || v.Type().Elem().Kind() != reflect.String || d.isSecret(path) {
		return "each of its items begins with -"
	}
	parts := []string{raw}
	if strings.HasSuffix(path, ".args") {
		parts = strings.Fields(raw)
	}
	return "did you mean [" + functions.Clip(strings.Join(functions.ConvertAll(parts, strconv.Quote), ", ")) + "]?"
}

func mappingValues(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch x := n.(type) {
	case *ast.MappingNode:
		return x.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{x}, true
	case *ast.AnchorNode:
		return mappingValues(x.Value)
	}
	return nil, false
}

func keyOf(kv *ast.MappingValueNode) (string, bool) {
	s, isText, ok := scalarText(kv.Key)
	return s, ok && isText
}

// scalarText is the text of a scalar as it was written, and whether it is text by
// its own looks (and not a number, true or the like).
func scalarText(n ast.Node) (raw string, isText, ok bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true, true
	case *ast.LiteralNode:
		return x.Value.Value, true, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, false, true
	}
	return "", false, false
}

// describeNode names a value for people.
func describeNode(n ast.Node) string {
	switch x := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys and values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.StringNode:
		return fmt.Sprintf("the text %q", functions.Clip(x.Value))
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.MergeKeyNode:
		return "a merge key"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + functions.Clip(n.GetToken().Value)
	case *ast.BoolNode:
		return n.GetToken().Value
	}
	return "something else"
}

func describeType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[functions.Bytes]():
		return "a size such as 64Mi"
	case reflect.TypeFor[functions.CPU]():
		return "a number of processors such as 2 or 500m"
	case reflect.TypeFor[functions.Duration]():
		return "a duration such as 30s"
	case reflect.TypeFor[functions.Probe]():
		return "auto, none, or a path and a body"
	}
	return "a value"
}

func suggestName(word string, names []string) string {
	if hint := functions.DidYouMean(word, names, 1); hint != "" {
		return hint
	}
	return "one of " + strings.Join(slices.Sorted(slices.Values(names)), ", ")
}

// Keys are the keys at the top of a one-document file that DecodeInto read,
// with the line of each.
func Keys(file string, data []byte) (_ map[string]int, err error) {
	d := &decoder{file: file, most: MaxFile}
	defer d.recoverProblem(&err)
	keys := map[string]int{}
	for _, body := range d.parse(data) {
		m, _ := mappingValues(body)
		for _, kv := range m {
			if key, ok := keyOf(kv); ok {
				keys[key] = position(kv).Line
			}
		}
	}
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	return keys, nil
}
