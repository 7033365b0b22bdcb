package knative

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// DecodeStarted decodes THAW_MODEL, in which $$ stands for $.
func DecodeStarted(name, value string) (*functions.Model, error) {
	if len(value) > 2*catalog.MaxTenant {
		return nil, errTooLarge
	}
	docs, err := catalog.DecodeTenant(name, []byte(strings.ReplaceAll(value, "$$", "$")))
	if err == nil && (len(docs) != 1 || docs[0].Model == nil) {
		err = errors.New("one document of kind Model is wanted")
	}
	if err != nil {
		return nil, err
	}
	return docs[0].Model, nil
}

// DecodeAnnotation decodes the model file on a Service and checks the fields that are
// read from it. Other fields are not checked: a newer thaw may know more.
func DecodeAnnotation(doc string) (*functions.Model, error) {
	if len(doc) > catalog.MaxTenant {
		return nil, errTooLarge
	}
	m := new(functions.Model)
	if err := json.Unmarshal([]byte(doc), m); err != nil {
		return nil, err
	}
	m.SetDefaults()
	for _, p := range functions.Validate(m) {
		if strings.HasPrefix(p.Path, "spec.queue") || p.Path == "spec.scale.idle" || strings.HasPrefix(p.Path, "metadata.labels") {
			return nil, fmt.Errorf("%s: %s", p.Path, p.Message)
		}
	}
	return m, nil
}

var errTooLarge = fmt.Errorf("it is larger than %s", functions.Bytes(catalog.MaxTenant).Human())

// Protect calls f, which reads one object of a tenant, and returns its panic as an error.
// Without it one bad object ends the controller of the whole cluster, and that of the
// next leader.
func Protect(log *slog.Logger, object string, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("an object cannot be read: panic", "object", object, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s cannot be read: %s", object, functions.Clip(fmt.Sprint(p)))
		}
	}()
	f()
	return nil
}
