package browser

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// chatter is a client that waits for an answer until it is told to leave.
type chatter struct {
	p      *platform
	cancel context.CancelFunc
	done   chan struct{}
}

func (c *chatter) begin(model string) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.done = cancel, make(chan struct{})
	req, err := http.NewRequestWithContext(ctx, "POST", c.p.url+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hello"}]}`, model)))
	if err != nil {
		c.p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	go func() {
		defer close(c.done)
		if res, err := http.DefaultClient.Do(req); err == nil {
			<-ctx.Done()
			res.Body.Close()
		}
	}()
}

func (c *chatter) end() {
	c.cancel()
	<-c.done
}
