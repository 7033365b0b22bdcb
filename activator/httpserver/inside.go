package httpserver

// NewRequest makes a request of this program's own, for a [Handler] that serves it like one
// of a client. origin tells the Handler whom it is made for; ctx ends it; draining reports
// whether it would have to end soon.
func NewRequest(origin any, method, path string, fields []Field, body []byte, ctx *Context, draining func() bool) *Request {
	return &Request{Method: method, Path: path, Body: body, from: &ownExchange{origin: origin, list: fields, ctx: ctx, draining: draining}}
}

// Origin is that of a request of this program's own; nil of every other.
func (r *Request) Origin() any {
	if o, ok := r.from.(*ownExchange); ok {
		return o.origin
	}
	return nil
}

// ownExchange is that of a request without a connection.
type ownExchange struct {
	origin   any
	list     []Field
	ctx      *Context
	draining func() bool
}

func (o *ownExchange) header(name string) string {
	return FieldOf(o.list, name)
}

func (o *ownExchange) eachField(yield func(Field) bool) {
	for _, f := range o.list {
		if !yield(f) {
			return
		}
	}
}

func (o *ownExchange) context() *Context { return o.ctx }
func (o *ownExchange) isDraining() bool  { return o.draining() }
