package activator

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// TestErrorRun: a replica whose engine answers one request after the other with an error of its
// own is reported, so that its engine is probed; the words reach the clients all the same.
func TestErrorRun(t *testing.T) {
	const broken = `{"error":{"message":"CUDA error: an illegal memory access was encountered","type":"server_error"}}`
	bad := func(status int) string {
		return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(broken), broken)
	}
	for name, c := range map[string]struct {
		answers []int // statuses, in the order of the requests
		want    int   // reports
	}{
		"one error":                    {[]int{200, 500, 200}, 0},
		"errors between good answers":  {[]int{500, 200, 500, 200, 502, 200}, 0},
		"two in a row":                 {[]int{200, 500, 500}, 1},
		"two, refusals between":        {[]int{500, 400, 422, 502}, 1},
		"a long run":                   {[]int{500, 500, 502, 500, 504, 500, 500, 500, 500}, 3},
		"generations that failed":      {[]int{424, 424}, 1},
		"a run after another":          {[]int{500, 500, 200, 500, 500}, 2},
		"an engine that is busy":       {[]int{503, 503, 503, 503}, 0},
		"an engine without a function": {[]int{501, 501, 501, 501}, 0},
	} {
		for _, request := range []string{plainRequest, streamRequest} {
			stream := request == streamRequest
			t.Run(fmt.Sprint(name, ", streamed: ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTestEnv(t, nil)
					status := 0
					w.engineAt("e:1", func(conn net.Conn, r *http.Request, body string) bool {
						if status == 200 {
							return goodAnswer(conn, r, body)
						}
						return writeString(conn, bad(status))
					})
					w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
					for _, status = range c.answers {
						r := w.post("/v1/chat/completions", request)
						if status >= 500 && (r.status != status || !strings.Contains(r.body, "illegal memory access")) {
							t.Errorf("answered %d: %+v", status, r)
						}
					}
					got := w.engineRequests()
					if len(got) != c.want {
						t.Errorf("reported: %q", got)
					}
					for _, report := range got {
						if !strings.Contains(report, "errors, the last with HTTP ") || strings.Contains(report, "CUDA") {
							t.Error(report)
						}
					}
				})
			})
		}
	}
}
