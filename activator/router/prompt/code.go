package prompt

import "bytes"

// codePoints are enough to call a text code. Points are small whole numbers: the weights
// below were set by hand and checked on labelled prompts; see bench/thaw-bench/router.
const codePoints = 6

// shortWords are the words of a short text, two of which that may be of programming are a stronger sign if one is technical.
const shortWords = 30

// code gathers the signs of code in a text.
type code struct {
	structure   int // points for fences, diffs, traces, statements, paths
	identifiers int // points, at most 4 of which count: field names are asked for in prose too
	symbols     int
	inFence     bool
	asked       int // points for a sentence that asks to write a function, a query, …
	inline      int // names between backticks
	formulas    int // commands of formulas (such as a fraction), and formulas between dollars

	languages, maybeLanguages, programs, maybe, syntax int // different words
	technical                                          int // of maybe
	counted                                            uint64
}

// certain reports whether no further sign is needed.
func (c *code) certain() bool { return c.structure >= codePoints }

// found reports whether a text of so many words is code or about code. Words count by
// their density: a long text about anything has some of them.
func (c *code) found(words int) bool {
	if c.certain() {
		return true
	}
	lexical := 4*min(c.languages, 3) + 3*min(c.programs, 2) + 2*min(c.maybe, 4) + 4*min(c.syntax, 3)
	if words <= shortWords && c.technical > 0 && c.maybe > 1 {
		lexical += c.maybe // of a short text a larger part
	} else if c.languages+c.programs+c.syntax == 0 && (c.maybe < 3 || c.technical == 0) {
		lexical /= 2
	}
	signs := min(c.identifiers, 4) + min(c.symbols, 8)*200/max(words, 200)
	if c.formulas > 1 { // functions, graphs and brackets are those of mathematics
		lexical, signs = 4*min(c.languages, 3), 0
	}
	if words <= shortWords && c.inline > 0 {
		signs += 4
	}
	lexical += 4 * min(c.maybeLanguages, 1)
	lexical = lexical * 80 / max(words, 80)
	if c.languages > 0 && words <= 40 {
		lexical += 2
	}
	return c.structure+signs+lexical+c.asked >= codePoints
}

// ask notes that a verb asks for code.
func (c *code) ask(verb, object wordClass) {
	points := 4
	switch {
	case object&classObject != 0:
		points = codePoints
	case verb&classMake != 0:
		points = 5
	}
	c.asked = max(c.asked, points)
}

// word counts a word, once if it is repeated or stands in the plural too.
func (c *code) word(word []byte, class wordClass) {
	bit := uint64(1) << ((word[0] + 11*word[min(2, len(word)-1)]) & 63)
	if class&(classSyntax|classLanguage|classProgram|classMaybe) == 0 || c.counted&bit != 0 {
		return
	}
	c.counted |= bit
	switch {
	case class&classSyntax != 0:
		c.syntax++
	case class&classLanguage != 0:
		c.languages++
	case class&classProgram != 0:
		c.programs++
	default:
		c.maybe++
		if class&classTechnical != 0 {
			c.technical++
		}
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
		if last == ';' || last == '{' || rest[0] == '(' || rest[0] == ' ' && rest[1] == '(' && last == ')' {
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
		} else if kinds[second] != kindNone && (i == 0 || text[i-1] == ' ' || text[i-1] == '\n') {
			c.symbols += 2 // a name among words
			c.inline++
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
	case '$':
		if isFormula(text[i:min(len(text), i+64)]) {
			c.formulas++
		}
	case '\\':
		c.backslash(text, i)
	case ':', '|':
		if second == rest[0] {
			c.symbols += 2
		}
	case '=':
		if beginsLine(text[:i]) {
			c.assignment(rest)
		}
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

// backslash reads a command of a formula, or a path of Windows.
func (c *code) backslash(text []byte, i int) {
	if i+2 >= len(text) {
		return
	}
	next := text[i+1]
	escape := next == 'n' || next == 't' || next == 'r'
	if kinds[next] == kindLower && !escape && kinds[text[i+2]] == kindLower && (i == 0 || kinds[text[i-1]] == kindNone) {
		c.formulas++
	}
	drive := i > 1 && text[i-1] == ':' && classes[text[i-2]] == charLetter && (i == 2 || kinds[text[i-3]] == kindNone)
	if drive && classes[next] == charLetter {
		c.structure += 3
	}
}

// assignment reads what follows a name at the beginning of a line, from the sign on.
func (c *code) assignment(rest []byte) {
	if len(rest) < 3 || rest[1] != ' ' {
		return
	}
	c.symbols += 2
	switch rest[2] {
	case '[', '"', '{', '\'':
		c.structure += 3
	}
}

// beginsLine reports whether a text ends with a line of one name and a blank.
func beginsLine(text []byte) bool {
	i := len(text) - 1
	if i < 1 || text[i] != ' ' {
		return false
	}
	for i--; i >= 0 && kinds[text[i]]&(kindLower|kindUpper|kindDigit|kindUnder) != 0; i-- {
	}
	return i < len(text)-2 && (i < 0 || text[i] == '\n')
}

// isFormula reports whether text begins with a short formula between dollars, and not with
// an amount or a variable.
func isFormula(text []byte) bool {
	n := bytes.IndexByte(text[1:], '$') + 1
	if n < 2 || text[1] == ' ' || text[n-1] == ' ' || bytes.IndexByte(text[:n], '\n') >= 0 {
		return false
	}
	return n+1 == len(text) || kinds[text[n+1]] == kindNone
}

// slash reads a comment or an absolute path of two parts.
func (c *code) slash(text []byte, i int, begin bool) {
	if i+2 >= len(text) {
		return
	}
	switch next := text[i+1]; {
	case begin && (next == '/' || next == '*'):
		c.structure += 2
	case classes[next] == charLetter && (i == 0 || isSpace(text[i-1]) || text[i-1] == '~' || text[i-1] == '.'):
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
