package batches

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const (
	MaxFile    = 200 << 20
	MaxLines   = 50_000
	formRoom   = 64 << 10 // for the rest of the form
	maxParts   = 16
	maxField   = 256
	maxUploads = 16 // at once
)

// The time that a file is kept, in seconds: the default, and the bounds of expires_after.
const (
	keepFiles = 30 * 24 * 3600
	leastKeep = 3600
)

// Receive is [httpserver.Options].Receive: an upload is written to the folder as it comes.
func (s *Server) Receive(req *httpserver.Request) (httpserver.Receiver, int64) {
	if req.Path != filesPath || req.Method != "POST" {
		return nil, 0
	}
	return &upload{s: s, kind: strings.Clone(req.Header("Content-Type")), keep: keepFiles}, s.maxFile + formRoom
}

type upload struct {
	s    *Server
	kind string // content type of the form
	to   *store.Upload

	name, purpose string
	keep          int64 // in seconds
	file          bool  // the part was there
	lines         int   // that are not blank
	text          bool  // the line at its end has more than blanks
	counted       bool  // as one of the uploads at once
}

// Receive reads the form: the parts file and purpose in any order, and what else OpenAI has.
func (u *upload) Receive(body io.Reader) error {
	u.counted = true
	if u.s.uploads.Add(1) > maxUploads {
		return openai.New(openai.QueueFull, "The server receives as many files as it does at once.")
	}
	kind, params, err := mime.ParseMediaType(u.kind)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return openai.New(openai.InvalidRequest, "A file is uploaded as multipart/form-data, with the parts file and purpose.")
	}
	if u.to, err = u.s.store.NewUpload(); err != nil {
		return u.s.storeError(err, "file", "")
	}
	form := multipart.NewReader(body, params["boundary"])
	for n := 0; ; n++ {
		p, err := form.NextRawPart()
		if err == io.EOF {
			return u.check()
		}
		if err == nil && n == maxParts {
			return openai.New(openai.InvalidRequest, "The form has too many parts.")
		}
		if err == nil {
			err = u.part(p)
		}
		if e, ok := err.(*openai.Error); ok {
			return e
		}
		if err != nil {
			return openai.New(openai.InvalidRequest, "The form is not well formed.")
		}
	}
}

func (u *upload) part(p *multipart.Part) error {
	name := p.FormName()
	if name == "file" {
		if u.file {
			return openai.New(openai.InvalidRequest, "The form has more than one file.").With("file")
		}
		u.file, u.name = true, cleanName(p.FileName())
		return u.copy(p)
	}
	b, err := io.ReadAll(io.LimitReader(p, maxField+1))
	if err != nil {
		return err
	}
	v := string(b)
	switch {
	case len(b) > maxField:
	case name == "purpose":
		u.purpose = v
		return nil
	case name == "expires_after[anchor]":
		if v == "created_at" {
			return nil
		}
	case name == "expires_after[seconds]":
		if u.keep, err = strconv.ParseInt(v, 10, 64); err == nil && u.keep >= leastKeep && u.keep <= keepFiles {
			return nil
		}
	default:
		return openai.New(openai.UnsupportedParameter,
			"The form takes file, purpose, expires_after[anchor] and expires_after[seconds], not "+functions.Clip(name)+
				".").With(functions.Clip(name))
	}
	return openai.New(openai.InvalidValue,
		"The part "+name+" has a value that is not allowed; of expires_after the anchor is created_at, "+
			"and the seconds are from 3600 to 2592000.").With(name)
}

// cleanName is a file's name as it is shown.
func cleanName(s string) string {
	s = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s), "")
	if s == "" || s == "." {
		return "upload.jsonl"
	}
	return functions.Clip(s)
}

// copy writes the content to the folder and counts its lines.
func (u *upload) copy(in io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		u.count(buf[:n])
		switch {
		case u.to.Size+int64(n) > u.s.maxFile:
			return openai.New(openai.RequestTooLarge,
				fmt.Sprintf("The file is larger than %d bytes, which is the most; split it.", u.s.maxFile)).With("file")
		case u.lines > MaxLines || u.lines == MaxLines && u.text:
			return openai.New(openai.RequestTooLarge,
				fmt.Sprintf("The file has more than %d lines, which is the most; split it.", MaxLines)).With("file")
		}
		if _, err := u.to.Write(buf[:n]); err != nil {
			return u.s.storeError(err, "file", "")
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if u.text {
		u.lines++
	}
	return nil
}

// count counts the lines of the next piece.
func (u *upload) count(p []byte) {
	for len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte{'\n'})
		u.text = u.text || len(bytes.TrimSpace(line)) > 0
		if whole {
			if u.text {
				u.lines++
			}
			u.text = false
		}
		p = rest
	}
}

func (u *upload) check() error {
	switch {
	case !u.file:
		return openai.New(openai.InvalidValue, "The form has no part file: send file=@NAME.jsonl and purpose=batch.").With("file")
	case u.purpose != "batch":
		return openai.New(openai.InvalidValue,
			"purpose is `"+functions.Clip(u.purpose)+"`; this server takes files for batch only: send the part purpose=batch.").With("purpose")
	case u.lines == 0:
		return openai.New(openai.InvalidValue, "The file is empty.").With("file")
	}
	return nil
}

func (u *upload) commit(f store.File) (store.File, error) {
	to := u.to
	if to == nil {
		return f, errors.New("the upload is over")
	}
	u.to = nil
	f.Name, f.Purpose, f.Expires = u.name, u.purpose, f.Created+u.keep
	return to.Commit(f)
}

// Close discards what was not committed.
func (u *upload) Close() {
	if u.counted {
		u.counted = false
		u.s.uploads.Add(-1)
	}
	if u.to != nil {
		u.to.Discard()
		u.to = nil
	}
}
