package httpserver

import "strings"

// NewRequest makes a request of this program's own, for a [Handler] that serves it like one
// of a client. ctx ends it; draining reports whether it would have to end soon.
func NewRequest(method, path string, fields []Field, body []byte, ctx *Context, draining func() bool) *Request {
	return &Request{Method: method, Path: path, Body: body, from: &ownExchange{list: fields, ctx: ctx, draining: draining}}
}

// ownExchange is that of a request without a connection.
type ownExchange struct {
	list     []Field
	ctx      *Context
	draining func() bool
}

func (o *ownExchange) header(name string) string {
	for _, f := range o.list {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

func (o *ownExchange) eachField(yield func(Field) bool) {
	for _, f := range o.list {
		if !yield(f) {
			return
		}
	}
}

func (o *ownExchange) context() *Context   { return o.ctx }
func (o *ownExchange) isHTTP10() bool      { return false }
func (o *ownExchange) isDraining() bool    { return o.draining() }
func (o *ownExchange) asksWebSocket() bool { return false }
