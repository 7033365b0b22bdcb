package ember

import (
	"encoding/json/v2"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// failure is an answer in OpenAI's error shape.
type failure struct {
	status  int
	message string
	kind    string
	param   string
	code    string
}

func (f *failure) Error() string { return f.message }

// invalidRequest is the answer to a request that can never be served.
func invalidRequest(param, code, format string, a ...any) *failure {
	return &failure{http.StatusBadRequest, fmt.Sprintf(format, a...), "invalid_request_error", param, code}
}

// unavailable is the answer to a request that may be repeated.
func unavailable(code, message string) *failure {
	return &failure{http.StatusServiceUnavailable, message, "server_error", "", code}
}

type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (f *failure) body() errorBody {
	e := errorObject{Message: f.message, Type: f.kind}
	if f.param != "" {
		e.Param = &f.param
	}
	if f.code != "" {
		e.Code = &f.code
	}
	return errorBody{e}
}

func (f *failure) write(w http.ResponseWriter) { writeJSON(w, f.status, f.body()) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v, json.FormatNilSliceAsNull(true))
	if err != nil { // impossible: all text is valid UTF-8
		http.Error(w, "encoding failed", http.StatusInternalServerError)
		return
	}
	// Bounds the handler of a client that does not read.
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeBound))
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b) // the context reports a client that has gone
}
