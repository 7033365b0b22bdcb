package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/pythonjson"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/loader/source"
)

const (
	attempts = 3
	maxSmall = 64 << 20 // bytes of a file that is read whole: an index of shards
)

type reader struct {
	ctx              context.Context
	from             loader.Source
	scheme, location string
	files            []source.File
	names            []string // of all that is there
}

func open(ctx context.Context, src string, o Options) (*reader, error) {
	scheme, location, err := loader.Locate(src, o.Folder)
	if err != nil {
		return nil, err
	}
	from, ok := o.Sources[scheme]
	if !ok {
		return nil, source.Fail(source.BadSource, fmt.Sprintf("the scheme %q is not known here", scheme),
			"known are "+strings.Join(slices.Sorted(maps.Keys(o.Sources)), ", ")).At(location, "")
	}
	r := &reader{ctx: ctx, from: from, scheme: scheme, location: location}
	var plan source.Plan
	err = r.try(func() (err error) {
		plan, err = from.Plan(ctx, location, o.Files)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.files, r.names = plan.Files, plan.Names()
	return r, nil
}

// narrow leaves out what o.Files do not choose.
func (r *reader) narrow(o Options) (err error) {
	r.files, err = o.Files.Narrow(r.files)
	return r.named(err)
}

// longestWait is the longest pause that a source may ask for: a person waits for the answer.
const longestWait = 5 * time.Second

// try runs a read up to attempts times, as long as its failures may pass.
func (r *reader) try(read func() error) error {
	pause := backoff.Backoff{First: 200 * time.Millisecond, Max: 5 * time.Second}
	for n := 1; ; n++ {
		err := read()
		if kind := source.KindOf(err); err == nil || n == attempts || kind != source.Unavailable && kind != source.Malformed {
			return err
		}
		wait := pause.Next()
		if e, ok := errors.AsType[*source.Error](err); ok && e.RetryAfter > longestWait {
			e.Detail += ", and asks to wait " + e.RetryAfter.String()
			return err
		} else if ok {
			wait = max(wait, e.RetryAfter)
		}
		if !backoff.Sleep(r.ctx, wait) {
			return err
		}
	}
}

func (r *reader) named(err error) error { return source.WithSource(err, r.location) }

// decode reads a file of JSON.
func decode(name string, raw []byte, v any) error {
	err := pythonjson.Decode(raw, v)
	if err == nil {
		return nil
	}
	return &source.Error{Kind: source.Corrupt, File: name, Detail: "is not the JSON object that engines read", Err: err,
		Fix: "mend it there (JSON has no comments, and no comma before a bracket), or copy the file again"}
}

func (r *reader) file(name string) (source.File, bool) {
	i := slices.IndexFunc(r.files, func(f source.File) bool { return f.Name == name })
	if i < 0 {
		return source.File{}, false
	}
	return r.files[i], true
}

func (r *reader) small(f source.File) ([]byte, error) {
	if f.Size > maxSmall {
		return nil, &source.Error{Kind: source.Refused, File: f.Name, Detail: fmt.Sprintf("has %d bytes; at most %d are read", f.Size, maxSmall)}
	}
	raw := make([]byte, f.Size)
	if _, err := (&rangeReader{r, f}).ReadAt(raw, 0); err != nil && err != io.EOF {
		return nil, err
	}
	if err := headercheck.Pointer(raw); err != nil {
		return nil, source.WithFile(err, f.Name)
	}
	return raw, nil
}

// checkPointer looks whether a file of weights is a pointer; such are shorter than 1 KiB.
func (r *reader) checkPointer(f source.File) error {
	if f.Size >= 1024 {
		return nil
	}
	_, err := r.small(f)
	return err
}

type rangeReader struct {
	r *reader
	f source.File
}

func (r *rangeReader) ReadAt(b []byte, off int64) (int, error) {
	short := off+int64(len(b)) > r.f.Size
	if short {
		b = b[:max(0, r.f.Size-off)]
	}
	if len(b) > 0 {
		err := r.r.try(func() error {
			body, err := r.r.from.Read(r.r.ctx, r.f, off, int64(len(b)))
			if err != nil {
				return err
			}
			defer body.Close()
			if _, err := io.ReadFull(body, b); err != nil {
				if r.r.ctx.Err() != nil {
					return context.Cause(r.r.ctx)
				}
				if source.KindOf(err) == "" {
					err = &source.Error{Kind: source.Malformed, Detail: "the body ended early", Err: err}
				}
				return source.WithFile(err, r.f.Name)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	if short {
		return len(b), io.EOF
	}
	return len(b), nil
}

// adapters returns those that lie in folders of the source.
func (r *reader) adapters() (out []Adapter, err error) {
	const most = 64
	for _, f := range r.files {
		folder, base := path.Split(f.Name)
		if base != adapterName || folder == "" || len(out) == most {
			continue
		}
		a, err := r.adapter(path.Clean(folder))
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Adapter) int { return strings.Compare(a.Folder, b.Folder) })
	return out, nil
}
