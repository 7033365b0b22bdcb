package source

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/functions"
)

// File is one file of a plan, pinned to one version of its bytes.
type File struct {
	// Name is the slash-separated path below the source's folder.
	Name string
	// Size in bytes.
	Size int64
	// Version names exactly these bytes (an ETag, or size and mtime for a
	// folder). Reading another version is an error of kind Changed.
	Version string
	// MD5 is the digest the source keeps for the whole file; nil when it has
	// none.
	MD5 []byte
	// CRC32C (Castagnoli) and CRC64 (NVMe), big-endian, of the whole file, where
	// the source keeps them; nil when it does not.
	CRC32C, CRC64 []byte
	// SHA256 is the hex digest of the whole file; empty when unknown.
	SHA256 string
	// Ref is what the source itself needs to find the file again. It holds no
	// secret: it is logged.
	Ref string
}

// Plan is one consistent listing of a location.
type Plan struct {
	Files []File
	// Left are files that cannot be used, and that no engine needs.
	Left []LeftOut
}

// Names are those of all files, also of those left out.
func (p *Plan) Names() []string {
	return append(Names(p.Files), functions.ConvertAll(p.Left, func(l LeftOut) string { return l.Name })...)
}

// LeftOut is a file that is not staged although its name would be.
type LeftOut struct {
	Name   string
	Reason string // part of a sentence: what is wrong with it
}

// Kind tells what went wrong, for people and programs.
type Kind string

// The kinds. Only Unavailable and Malformed are worth another try.
const (
	BadSource   Kind = "bad_source"         // the source string itself
	NotFound    Kind = "source_not_found"   // no such account, container, folder or file
	Denied      Kind = "source_denied"      // no or wrong credentials
	Unavailable Kind = "source_unavailable" // network, 429, 5xx
	Malformed   Kind = "source_malformed"   // the answer is not what was asked for
	Changed     Kind = "source_unstable"    // the bytes were overwritten while they were read
	Refused     Kind = "source_refused"     // a name or a type that is not accepted
	Missing     Kind = "weights_missing"    // a file the model needs is not there
	Truncated   Kind = "weights_truncated"  // shorter than its own header says
	Corrupt     Kind = "weights_corrupt"    // not the format its name says
	Digest      Kind = "digest_mismatch"    // not the bytes that were promised
	NoSpace     Kind = "insufficient_disk"  // nothing left to evict
	Broken      Kind = "store_failed"       // the local disk failed
)

// Error is every error of the loader: what was tried, on what, what happened, and how
// to fix it. It never holds a credential.
type Error struct {
	Kind   Kind
	Source string // the location, without query
	File   string // empty when it is about the whole source
	Detail string // part of a sentence: what happened instead
	Fix    string // how to fix it; may be empty
	// RetryAfter is the pause that the source asked for; 0 for none.
	RetryAfter time.Duration
	// Busy: the source asked for fewer requests (429, 503), with or without a
	// RetryAfter.
	Busy bool
	Err  error
}

func Names(files []File) []string {
	return functions.ConvertAll(files, func(f File) string { return f.Name })
}

// Fail makes an Error: what happened, and how to fix it.
func Fail(kind Kind, detail, fix string) *Error { return &Error{Kind: kind, Detail: detail, Fix: fix} }

// At sets the location and the file that an Error is about.
func (e *Error) At(location, file string) *Error {
	e.Source, e.File = location, file
	return e
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Source != "" {
		b.WriteString(e.Source)
		if e.File != "" {
			b.WriteString(": ")
		}
	}
	b.WriteString(e.File)
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(e.Detail)
	if e.Err != nil {
		if e.Detail != "" {
			b.WriteString(": ")
		}
		b.WriteString(e.Err.Error())
	}
	fix := cmp.Or(e.Fix, fixes[e.Kind])
	if e.Fix == "" && saysWayOut.MatchString(b.String()) {
		fix = "" // another copy would be the same
	}
	if e.Fix == "" && e.Busy {
		fix = "it asks for fewer requests: try again later"
	}
	if cause, ok := errors.AsType[*Error](e.Err); ok && e.Fix == "" && cause.Kind == e.Kind {
		fix = "" // the cause has it
	}
	if fix != "" {
		b.WriteString(" (" + fix + ")")
	}
	return b.String()
}

// saysWayOut matches what says what else helps.
var saysWayOut = regexp.MustCompile(`: (?:convert|decompress|rename) `)

// fixes are what helps against an error without a Fix of its own.
var fixes = map[Kind]string{
	Unavailable: "check the network and what is between, or try again later",
	Malformed:   "a proxy or a cache between may cut or change what comes: have it pass this host through",
	Corrupt:     "copy the file again",
	Truncated:   "copy the file again",
	Changed:     "let the upload finish, then try again; where nothing writes to it, its servers name different versions of it",
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain, or "".
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

// WithSource adds the location to an Error that has none.
func WithSource(err error, location string) error {
	if e, ok := errors.AsType[*Error](err); ok && e.Source == "" {
		e.Source = location
	}
	return err
}

// WithFile adds the file's name to an Error that has none.
func WithFile(err error, name string) error {
	if e, ok := errors.AsType[*Error](err); ok && e.File == "" {
		e.File = name
	}
	return err
}

// Bounds of a name: generous for real checkpoints, small enough for every file system.
const (
	maxName    = 512
	maxElement = 200
	maxDepth   = 8
)

// CheckName refuses every name that could mean anything but a file below the folder,
// on any system that may run this or share the disk.
func CheckName(name string) error {
	bad := func(reason string) error {
		return &Error{Kind: Refused, Detail: fmt.Sprintf("file name %q %s", functions.Clip(name), reason)}
	}
	switch {
	case name == "":
		return bad("is empty")
	case len(name) > maxName:
		return bad("is too long")
	case !utf8.ValidString(name):
		return bad("is not UTF-8")
	case strings.HasPrefix(name, "/"):
		return bad("is absolute")
	case strings.ContainsAny(name, `\:`):
		return bad("holds a backslash or a colon")
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }):
		return bad("holds a control character")
	}
	parts := strings.Split(name, "/")
	if len(parts) > maxDepth {
		return bad("is too deep")
	}
	for _, p := range parts {
		switch {
		case p == "" || p == "." || p == "..":
			return bad("does not name one file below its folder")
		case len(p) > maxElement:
			return bad("has a part that is too long")
		case strings.HasSuffix(p, ".") || strings.HasSuffix(p, " ") || strings.HasPrefix(p, " "):
			return bad("begins or ends a part with a dot or a space")
		case isDeviceName(p):
			return bad("is a device on some systems")
		}
	}
	return nil
}

func isDeviceName(part string) bool {
	base, _, _ := strings.Cut(strings.ToLower(part), ".")
	return slices.Contains([]string{"con", "prn", "aux", "nul"}, base) ||
		len(base) == 4 && (strings.HasPrefix(base, "com") || strings.HasPrefix(base, "lpt")) && base[3] >= '0' && base[3] <= '9'
}

// ReservedFolder is thaw's folder beside a checkpoint: compile caches of engines.
const ReservedFolder = "_thaw/"

// Allowed reports whether a file of this name is staged: weights in formats that carry
// no code, and the text beside them. Hidden files and ReservedFolder are not.
func Allowed(name string) bool {
	if isHidden(name) {
		return false
	}
	base := strings.ToLower(path.Base(name))
	if slices.Contains([]string{".safetensors", ".gguf", ".json", ".txt", ".jinja", ".tiktoken"}, path.Ext(base)) {
		return true
	}
	// sentencepiece models have no extension of their own: by name only, because
	// anything may be called x.model.
	sentencePieces := []string{"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm"}
	return slices.ContainsFunc(sentencePieces, func(p string) bool { return base == p || strings.HasPrefix(base, p+".v") })
}

func Weights(name string) bool {
	ext := strings.ToLower(path.Ext(name))
	return ext == ".safetensors" || ext == ".gguf"
}
