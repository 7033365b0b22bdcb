package upstream

import "bytes"

// NodeError is the error of an answer that an agent or a shim, not the engine behind
// it, gives where it has no such replica (any more), or its engine did not answer.
// Engines have no such codes.
func NodeError(status int, body []byte) error {
	switch {
	case status == 503 && (bytes.Contains(body, []byte(`"code":"shutting_down"`)) || bytes.Contains(body, []byte(`"code":"model_loading"`)) || bytes.Contains(body, []byte(`"code":"model_load_failed"`))):
		return ErrDial
	case bytes.Contains(body, []byte(`"code":"replica_not_found"`)), bytes.Contains(body, []byte(`"code":"replica_not_ready"`)):
		return ErrDial
	case bytes.Contains(body, []byte(`"code":"engine_crashed"`)):
		return ErrNoAnswer
	}
	return nil
}
