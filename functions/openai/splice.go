package openai

// Splice returns the body in pieces whose concatenation names the model as the
// engine knows it and, when usage is set, asks a stream for its usage chunk;
// nothing else is touched or encoded anew, but a byte order mark is left out,
// and what stands before and behind a form. The pieces alias body, at most five
// of them; dst is appended to, so that a caller can keep the array.
func (e *Envelope) Splice(dst [][]byte, body []byte, name string, usage bool) [][]byte {
	usage = usage && e.Stream && !e.IncludeUsage && !e.form
	type cut struct {
		span
		with []byte
	}
	var cuts [2]cut
	n := 0
	switch {
	case e.none && e.form:
		cuts[n], n = cut{e.model, []byte(e.part + name + "\r\n")}, n+1
	case e.none:
		with := appendQuoted(append(make([]byte, 0, len(name)+64), `"model":`...), name)
		if usage && e.options == (span{}) {
			with = append(with, `,"stream_options":{"include_usage":true}`...)
			usage = false
		}
		if !e.empty {
			with = append(with, ',')
		}
		cuts[n], n = cut{e.model, with}, n+1
	case name != e.Model:
		with := []byte(name)
		if !e.form {
			with = appendQuoted(make([]byte, 0, len(name)+2), name)
		}
		cuts[n], n = cut{e.model, with}, n+1
	}
	if usage {
		c := cut{with: []byte("true"), span: e.usage}
		switch {
		case e.usage != (span{}):
		case e.options == (span{}): // absent: it is inserted behind the model, which is always present
			c = cut{span{e.model.end, e.model.end}, []byte(`,"stream_options":{"include_usage":true}`)}
		case body[e.options.at] != '{': // null
			c = cut{e.options, []byte(`{"include_usage":true}`)}
		case e.bare:
			c = cut{span{e.options.at + 1, e.options.at + 1}, []byte(`"include_usage":true`)}
		default:
			c = cut{span{e.options.at + 1, e.options.at + 1}, []byte(`"include_usage":true,`)}
		}
		cuts[n], n = c, n+1
	}
	if n == 2 && cuts[1].at < cuts[0].at {
		cuts[0], cuts[1] = cuts[1], cuts[0]
	}
	at, end := skipMark(body), len(body) // some engines refuse the mark
	if e.form {
		at, end = e.whole.at, e.whole.end
	}
	for _, c := range cuts[:n] {
		if c.at > at {
			dst = append(dst, body[at:c.at])
		}
		dst = append(dst, c.with)
		at = c.end
	}
	if at < end {
		dst = append(dst, body[at:end])
	}
	return dst
}

// AsksUsage reports whether Splice with usage set adds what the client did not
// ask for, so that the extra chunk must be removed from the stream again.
func (e *Envelope) AsksUsage() bool { return e.Stream && !e.IncludeUsage && !e.form }
