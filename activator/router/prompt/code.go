package prompt

import "bytes"

// codePoints are enough to call a text code. Points are small whole numbers: the weights
// below were set by hand and checked on labelled prompts; see bench/thaw-bench/router.
const codePoints = 6

// code gathers the signs of code in a text.
type code struct {
	structure   int // points for fences, diffs, traces, statements, paths
	identifiers int // points, at most 4 of which count: field names are asked for in prose too
	symbols     int
	inFence     bool
	asked       bool // a sentence asks to write a function, a query, …

	languages, programs, maybe, syntax int // words
}

// certain reports whether no further sign is needed.
func (c *code) certain() bool { return c.structure >= codePoints }

// found reports whether a text of so many words is code or about code. Words count by
// their density: a long text about anything has some of them.
func (c *code) found(words int) bool {
	lexical := 4*min(c.languages, 3) + 3*min(c.programs, 2) + 2*min(c.maybe, 4) + 4*min(c.syntax, 3)
	if c.asked {
		lexical += 3
	}
	if c.languages+c.programs+c.syntax == 0 && c.maybe < 3 {
		lexical /= 2
	}
	lexical = lexical * 80 / max(words, 80)
	if c.languages > 0 && words <= 40 {
		lexical += 2
	}
	return c.structure+min(c.identifiers, 4)+min(c.symbols, 8)+lexical >= codePoints
}

func (c *code) word(class wordClass) {
	switch {
	case class < classLanguage:
	case class&classSyntax != 0:
		c.syntax++
	case class&classLanguage != 0:
		c.languages++
	case class&classProgram != 0:
		c.programs++
	case class&classMaybe != 0:
		c.maybe++
	}
}

// identifier reads the word text[start:end], which has a capital or an underscore inside
// or a parenthesis behind it.
func (c *code) identifier(text []byte, start, end int, inside kind) {
	word := text[start:end]
	letters := 0
	for _, b := range word {
		if b >= 'a' && b <= 'z' {
			letters++
		}
	}
	if start > 0 && text[start-1] == '"' && end < len(text) && text[end] == '"' {
		return // a key of JSON
	}
	if inside&kindUnder != 0 && letters > 1 && word[0] != '_' && word[len(word)-1] != '_' {
		c.identifiers += 2
	}
	if bytes.HasSuffix(word, []byte("Error")) && len(word) > 5 || bytes.HasSuffix(word, []byte("Exception")) && len(word) > 9 {
		c.structure += 5
	} else if inside&kindUpper != 0 && letters > 1 && word[0] >= 'a' && word[0] <= 'z' && len(word) > 5 {
		c.identifiers += 2
	}
	if end+1 < len(text) && text[end] == '(' && letters > 1 && !bytes.HasPrefix(text[end:], []byte("(s)")) &&
		!bytes.HasPrefix(text[end:], []byte("(es)")) {
		c.symbols++
		if text[end+1] == ')' || text[end+1] == '"' {
			c.symbols += 2
		}
	}
}

// statement reads the line that begins with the keyword text[start:end].
func (c *code) statement(text []byte, start, end int) {
	rest := text[end:min(len(text), end+160)]
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i]
	}
	for len(rest) > 0 && classes[rest[len(rest)-1]] == charSpace {
		rest = rest[:len(rest)-1]
	}
	if len(rest) < 2 {
		return
	}
	last, called := rest[len(rest)-1], bytes.IndexByte(rest, '(') >= 0
	switch string(text[start:end]) {
	case "def", "fn", "func", "function", "class", "struct", "impl", "enum":
		switch {
		case called && (last == ':' || last == '{'):
			c.structure += codePoints
		case (last == ':' || last == '{') && rest[0] == ' ' || called && last != '.' && last != '?':
			c.structure += 4
		}
	case "import", "from", "package", "using", "use":
		if bytes.Count(rest, []byte(" ")) <= 1 || bytes.Contains(rest, []byte(" import ")) {
			if last != '.' && last != ':' {
				c.structure += 4
			}
		}
	case "at": // a line of a stack trace
		if i := bytes.IndexByte(rest, '('); i > 0 && bytes.IndexByte(rest[1:i], ' ') < 0 && bytes.IndexByte(rest[:i], '.') > 0 {
			c.structure += 5
		}
	case "diff":
		if bytes.HasPrefix(rest, []byte(" --git ")) {
			c.structure += 8
		}
	case "error":
		if rest[0] == '[' || bytes.HasPrefix(rest, []byte(" TS")) || bytes.HasPrefix(rest, []byte(" CS")) {
			c.structure += 6
		}
	case "panic":
		if rest[0] == ':' {
			c.structure += 4
		}
	case "SELECT", "INSERT", "UPDATE", "DELETE", "CREATE":
		c.structure += 5
	default:
		if last == ';' || last == '{' {
			c.structure += 3
		}
	}
}

// dot reads a full stop inside a word: the name of a source file, and a line in it.
func (c *code) dot(text []byte, i int) {
	end := i + 1
	for end < len(text) && end-i < 6 && classes[text[end]] == charLetter {
		end++
	}
	if i == 0 || kinds[text[i-1]] == kindNone || end < len(text) && kinds[text[end]] != kindNone {
		return
	}
	switch string(text[i+1 : end]) {
	case "py", "go", "rs", "js", "ts", "jsx", "tsx", "c", "h", "cc", "cpp", "hpp", "java", "kt", "rb", "php", "cs", "swift", "scala", "sh",
		"sql", "toml", "proto", "lua", "ipynb":
		c.structure += 3
		if end+1 < len(text) && text[end] == ':' && classes[text[end+1]] == charDigit {
			c.structure += 6
		}
	}
}

var fence = []byte("```")

// symbol reads a mark that is no end of a sentence.
func (c *code) symbol(text []byte, i int, begin bool) {
	rest := text[i:min(len(text), i+24)]
	var second byte
	if len(rest) > 1 {
		second = rest[1]
	}
	switch rest[0] {
	case '`':
		if bytes.HasPrefix(rest, fence) && (i == 0 || text[i-1] != '`') {
			if !c.inFence {
				c.structure += fencePoints(text[i+len(fence):])
			}
			c.inFence = !c.inFence
		}
	case '/':
		c.slash(text, i, begin)
	case '#':
		if begin && (bytes.HasPrefix(rest, []byte("#include")) || bytes.HasPrefix(rest, []byte("#!/")) ||
			bytes.HasPrefix(rest, []byte("#define"))) {
			c.structure += 6
		}
	case '@':
		if begin && bytes.HasPrefix(rest, []byte("@@ -")) {
			c.structure += 8
		}
	case '+', '-':
		switch {
		case begin && len(rest) > 4 && (bytes.HasPrefix(rest, []byte("+++ ")) || bytes.HasPrefix(rest, []byte("--- "))) &&
			classes[rest[4]] == charLetter:
			c.structure += 3
		case second == '=' || rest[0] == '+' && second == '+' && !begin:
			c.symbols += 2
		case rest[0] == '-' && second == '>':
			c.symbols++
		}
	case ';', '{':
		if len(rest) == 1 || rest[1] == '\n' || rest[1] == '\r' {
			c.symbols += 2
		}
	case '}':
		if begin && (len(rest) == 1 || rest[1] == '\n' || rest[1] == ';') {
			c.symbols++
		}
	case '\\':
		if i > 0 && text[i-1] == ':' && len(rest) > 1 && classes[rest[1]] == charLetter {
			c.structure += 3
		}
	case ':', '|':
		if second == rest[0] {
			c.symbols += 2
		}
	case '=':
		if second == '>' || second == '=' {
			c.symbols += 2
		}
	case '!':
		if second == '=' {
			c.symbols += 2
		}
	case '&':
		if second == '&' {
			c.symbols += 3
		}
	case '<':
		if second == '/' {
			c.symbols++
		}
	}
}

// slash reads a comment or an absolute path of two parts.
func (c *code) slash(text []byte, i int, begin bool) {
	if i+2 >= len(text) {
		return
	}
	switch next := text[i+1]; {
	case begin && (next == '/' || next == '*'):
		c.structure += 2
	case classes[next] == charLetter && (i == 0 || classes[text[i-1]] >= charSpace || text[i-1] == '~' || text[i-1] == '.'):
		part := text[i+1 : min(len(text), i+40)]
		if k := bytes.IndexByte(part, '/'); k > 0 && !bytes.ContainsAny(part[:k], " \n") {
			c.structure += 3
		}
	}
}

// hasFence reports whether a text has a fenced block of code.
func hasFence(text []byte) bool {
	for {
		i := bytes.Index(text, fence)
		if i < 0 {
			return false
		}
		text = text[i+len(fence):]
		if fencePoints(text) >= codePoints {
			return true
		}
		if i = bytes.Index(text, fence); i < 0 { // the end of this block begins no other
			return false
		}
		text = text[i+len(fence):]
	}
}

// fencePoints rates a fenced block by what follows the fence: the name of its language.
func fencePoints(rest []byte) int {
	info := rest[:min(len(rest), 20)]
	if i := bytes.IndexByte(info, '\n'); i >= 0 {
		info = info[:i]
	}
	switch string(bytes.ToLower(bytes.TrimSpace(info))) {
	case "":
		return 3
	case "json", "jsonl", "text", "txt", "csv", "tsv", "markdown", "md", "plain", "plaintext", "xml", "latex", "math", "log", "table":
		return 0
	}
	return codePoints
}
