package socket

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

// Echo serves WebSockets that answer each message with itself, until ctx ends: the least
// that a socket of this library costs.
func Echo(ctx context.Context, ln net.Listener) error {
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		for {
			kind, b, err := ws.Read(context.Background())
			if err != nil || ws.Write(context.Background(), kind, b) != nil {
				return
			}
		}
	})}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(ln); ctx.Err() == nil {
		return err
	}
	return nil
}
