package cli

import (
	"io"
	"os"

	xterm "golang.org/x/term"
)

// term is where a verb writes, and what it may do there.
type term struct {
	in       io.Reader
	out, err io.Writer
	outTTY   bool // stdout is a terminal that moves its cursor
	errTTY   bool // so is stderr
	colour   bool // of stderr and stdout both being allowed colours
	quiet    bool
	noInput  bool
}

func newTerm(in io.Reader, out, errw io.Writer, getenv func(string) string) *term {
	dumb := getenv("TERM") == "dumb"
	t := &term{in: in, out: out, err: errw, outTTY: isTTY(out) && !dumb, errTTY: isTTY(errw) && !dumb}
	t.colour = getenv("NO_COLOR") == "" && !dumb
	return t
}

func isTTY(v any) bool {
	f, ok := v.(*os.File)
	return ok && xterm.IsTerminal(int(f.Fd()))
}

func (t *term) paint(code, s string, tty bool) string {
	if !t.colour || !tty {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *term) red(s string) string  { return t.paint("31", s, t.errTTY) }
func (t *term) bold(s string) string { return t.paint("1", s, t.errTTY) }

// width of the terminal on stderr, 80 where it is not known.
func (t *term) width() int {
	if f, ok := t.err.(*os.File); ok {
		if w, _, err := xterm.GetSize(int(f.Fd())); err == nil && w > 20 {
			return w
		}
	}
	return 80
}
