package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog/foreign"
)

// Bounds of one file. They keep the decoding of any input within 10 MB of memory and a
// second: the parser recurses with the depth, each token costs 200 to 700 bytes, and an
// alias may stand for a tree that holds aliases.
const (
	MaxFile     = 128 << 10 // bytes
	MaxTenant   = 32 << 10  // bytes of a document that a tenant wrote into a cluster
	maxMarks    = 6_000     // characters that may begin or end a token
	maxKeys     = 1_000     // of one document; the parser's time grows with their square
	maxDepth    = 64        // brackets, or dashes in a row
	maxItems    = 5_000     // lines of lists of one document, for the same reason
	maxNodes    = 6_000     // values, aliases spelled out
	maxProblems = 20        // told at once
	maxColumn   = 512       // how far a key may be indented
)

// parse gives the bodies of the documents that are not empty.
func (d *decoder) parse(data []byte) []ast.Node {
	switch {
	case len(data) > d.most:
		d.add(nil, "", "weights and data do not belong in here", fmt.Sprintf("the file is larger than %s", functions.Bytes(d.most).Human()))
		return nil
	case !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0:
		d.add(nil, "", "models are described in YAML or JSON; "+foreign.OwnFile, "the file is not text in UTF-8")
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	whole := len(data)
	if at := wrongBlank.FindIndex(data); at != nil {
		line := 1 + bytes.Count(data[:at[1]], []byte("\n"))
		blank, _ := utf8.DecodeLastRune(data[:at[1]])
		d.add(&token.Position{Line: line, Column: 1}, "", "write a plain blank in its place",
			fmt.Sprintf("not YAML: %U stands where a blank belongs", blank))
		return nil
	}
	data = data[:countMarks(data)]
	if len(data) == whole {
		data = blankTabs(data)
	}
	tokens := lexer.Tokenize(string(data))
	if !d.checkDepth(tokens) {
		return nil
	}
	if len(data) < whole {
		d.add(nil, "", "split it into several files", fmt.Sprintf("too many values: more than %d characters that begin or end one", maxMarks))
		return nil
	}
	var bodies []ast.Node
	for _, tokens := range splitDocuments(tokens) {
		file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
		if err != nil {
			d.syntax(err, data)
			return nil
		}
		for _, doc := range file.Docs {
			switch doc.Body.(type) {
			case nil, *ast.NullNode, *ast.CommentGroupNode:
			case *ast.DirectiveNode:
				d.fail(doc.Body, "", "", "directives are not supported")
			default:
				bodies = append(bodies, doc.Body)
			}
		}
	}
	return bodies
}

// countMarks returns how long the beginning of data is that has at most maxMarks
// characters which may begin or end a token. Tokens are counted before the lexer makes
// them, because each costs hundreds of bytes.
func countMarks(data []byte) int {
	marks := 0
	for i, c := range data {
		switch c {
		case '{', '}', '[', ']', ',', ':', '"', '\'', '&', '*', '!', '|', '>', '%', '@', '`', '#', '?':
			marks++
		case '-':
			if i+1 == len(data) || data[i+1] <= ' ' {
				marks++
			}
		case '\n', '\r':
			if rest := data[i+1:]; bytes.HasPrefix(rest, []byte("---")) || bytes.HasPrefix(rest, []byte("...")) {
				marks += documentMarks
			}
		}
		if marks > maxMarks {
			return i
		}
	}
	return len(data)
}

// documentMarks is the cost of one more document, in marks.
const documentMarks = 8

// blankTabs returns JSON with blanks for the tabs between its tokens: JSON is YAML but for
// those. Other text is returned as it is.
func blankTabs(data []byte) []byte {
	b := bytes.TrimSpace(data)
	if len(b) == 0 || b[0] != '{' || bytes.IndexByte(b, '\t') < 0 {
		return data
	}
	out := slices.Clone(data)
	depth, text := 0, false
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '\t':
			out[i] = ' '
		case c == '{', c == '[':
			if depth++; depth > maxDepth {
				return data
			}
		case c == '}', c == ']':
			depth--
		}
	}
	if !json.Valid(b) {
		return data
	}
	return out
}

// splitDocuments groups tokens by document. The parser would copy all that follow, once
// per document.
func splitDocuments(tokens token.Tokens) []token.Tokens {
	var out []token.Tokens
	from := 0
	for i, t := range tokens {
		ended := i > from && tokens[i-1].Type == token.DocumentEndType
		if i > from && (t.Type == token.DocumentHeaderType || ended) {
			out = append(out, tokens[from:i])
			from = i
		}
	}
	if from < len(tokens) {
		out = append(out, tokens[from:])
	}
	return out
}

// checkDepth refuses what would make the parser recurse without end, or take long.
func (d *decoder) checkDepth(tokens token.Tokens) bool {
	depth, row, line, keys, items := 0, 0, 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.DocumentHeaderType:
			keys, items = 0, 0
		case token.MappingValueType, token.MappingKeyType:
			keys++
		case token.SequenceEntryType:
			items++
		}
		if keys > maxKeys || items > maxItems {
			d.add(t.Position, "", "part it with ---", fmt.Sprintf("more than %d keys or %d items in one document", maxKeys, maxItems))
			return false
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			if t.Position.Line != line {
				row, line = 0, t.Position.Line
			}
			row++
		}
		if depth > maxDepth || row > maxDepth || t.Position.Column > maxColumn && t.Type == token.MappingValueType && depth == 0 {
			d.add(t.Position, "", "", "nested too deeply")
			return false
		}
	}
	return true
}

// wrongBlank matches a blank that YAML does not take for one, in an indentation or behind a colon or dash.
var wrongBlank = regexp.MustCompile("(?m)^[ ]*(?:[\\w.-]+:[ ]*|-[ ]*)?[\u00a0\u2000-\u200b\u202f\u3000]")

// syntax adds the parser's error without its excerpt of the source.
func (d *decoder) syntax(err error, data []byte) {
	var at *token.Position
	var e yaml.Error
	message := ""
	if errors.As(err, &e) && e.GetToken() != nil {
		at, message = e.GetToken().Position, e.GetMessage()
	} else {
		line, _, _ := strings.Cut(err.Error(), "\n")
		message = functions.Clip(line)
	}
	d.add(at, "", foreign.SuggestSyntax(data, message), "not YAML: "+message)
}
