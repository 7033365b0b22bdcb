package kit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	xterm "golang.org/x/term"
)

// Terminal is where a verb writes, and in which form.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	OutTTY   bool // Out is a terminal that moves its cursor
	ErrTTY   bool // so is Err
	Color    bool // colours are allowed where the stream is a terminal
	Quiet    bool
	NoInput  bool
	Output   string // one of OutputForms
	Now      func() time.Time
}

// NewTerminal finds out which streams are terminals; TERM=dumb, no TERM and NO_COLOR count.
func NewTerminal(in io.Reader, out, errw io.Writer, getenv func(string) string) *Terminal {
	dumb := cmp.Or(getenv("TERM"), "dumb") == "dumb"
	t := &Terminal{In: in, Out: out, Err: errw, OutTTY: IsTTY(out) && !dumb, ErrTTY: IsTTY(errw) && !dumb, Now: time.Now}
	t.Color = getenv("NO_COLOR") == "" && !dumb
	return t
}

// interruptible is an input whose Read returns when done is closed.
type interruptible struct {
	in   io.Reader
	done <-chan struct{}
}

// Interruptible makes reads of in end with ctx, so that one interrupt ends a verb that waits for
// standard input. Input that comes later is lost.
func Interruptible(ctx context.Context, in io.Reader) io.Reader { return interruptible{in, ctx.Done()} }

func (i interruptible) Read(b []byte) (int, error) {
	type result struct {
		text []byte
		err  error
	}
	read := make(chan result, 1)
	text := make([]byte, len(b)) // b is the caller's again once Read has returned
	go func() {
		n, err := i.in.Read(text)
		read <- result{text[:n], err}
	}()
	select {
	case got := <-read:
		return copy(b, got.text), got.err
	case <-i.done:
		return 0, context.Canceled
	}
}

// IsTTY reports whether v is a file that is a terminal.
func IsTTY(v any) bool {
	if r, ok := v.(interruptible); ok {
		v = r.in
	}
	f, ok := v.(*os.File)
	return ok && xterm.IsTerminal(int(f.Fd()))
}

func (t *Terminal) paint(code, s string, tty bool) string {
	if !t.Color || !tty {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Dim is for stdout, where it is a terminal.
func (t *Terminal) Dim(s string) string { return t.paint("2", s, t.OutTTY) }

func (t *Terminal) Bold(s string) string { return t.paint("1", s, t.ErrTTY) }

// width of the terminal on stderr, 80 where it is not known.
func (t *Terminal) width() int {
	if f, ok := t.Err.(*os.File); ok {
		if w, _, err := xterm.GetSize(int(f.Fd())); err == nil && w > 20 {
			return w
		}
	}
	return 80
}

// Remark prints a line to Err, unless Quiet.
func (t *Terminal) Remark(format string, args ...any) {
	if !t.Quiet {
		fmt.Fprintln(t.Err, Plain(fmt.Sprintf(format, args...)))
	}
}
