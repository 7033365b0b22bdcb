package functions

import (
	"cmp"
	"path/filepath"
	"time"
)

// Remote is one remote file: an OpenAI-compatible API that another party runs.
type Remote struct {
	Head
	Spec RemoteSpec `json:"spec"`
}

// KeyPath is the file of the key, "" if the key is in no file. A relative one counts from
// the folder of the remote file.
func (r *Remote) KeyPath() string {
	path := r.Spec.KeyFrom.File
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.Dir, path)
}

// ModelName is the name of the model at the other side.
func (r *Remote) ModelName() string { return cmp.Or(r.Spec.Model, r.Metadata.Name) }

// Allows reports whether data of the class may be sent there. An Allow that is unset or
// unknown allows public data alone, so that a mistake confines data.
func (r *Remote) Allows(class DataClass) bool {
	allow := DataPublic.Rank()
	if r.Spec.Allow == DataInternal || r.Spec.Allow == DataSecret {
		allow = r.Spec.Allow.Rank()
	}
	return class.Rank() <= allow
}

// RemoteSpec is the spec of a remote file. URL is the base that paths such as
// /chat/completions follow, such as https://api.example.com/v1. Model is the name of the
// model at the other side; "" is the Remote's own. Allow is the highest class of data
// that may be sent there; "" is public.
type RemoteSpec struct {
	URL      string         `json:"url"`
	Model    string         `json:"model,omitempty"`
	KeyFrom  KeyFrom        `json:"keyFrom,omitzero"`
	Price    Price          `json:"price,omitzero"`
	Limits   RemoteLimits   `json:"limits,omitzero"`
	Timeouts RemoteTimeouts `json:"timeouts"`
	Allow    DataClass      `json:"allow,omitempty"`
}

// KeyFrom names where the key of a Remote is read: an environment variable of the server
// (read at start) or a file (read again when it changes). At most one is set.
type KeyFrom struct {
	Env  string `json:"env,omitempty"`
	File string `json:"file,omitempty"`
}

// RemoteLimits bound the use of a Remote by everyone together; 0 is no limit. SpendPerDay
// is in the currency of the installation; a day ends at midnight UTC.
type RemoteLimits struct {
	Concurrent        int     `json:"concurrent,omitempty"`
	RequestsPerMinute int     `json:"requestsPerMinute,omitempty"`
	TokensPerMinute   int     `json:"tokensPerMinute,omitempty"`
	SpendPerDay       float64 `json:"spendPerDay,omitempty"`
}

// RemoteTimeouts bound the connection, the first byte and the silence between bytes.
type RemoteTimeouts struct {
	Connect    Duration `json:"connect"`
	FirstToken Duration `json:"firstToken"`
	Idle       Duration `json:"idle"`
}

// DefaultRemoteTimeouts are those of a Remote that names none.
func DefaultRemoteTimeouts() RemoteTimeouts {
	return RemoteTimeouts{Connect: Duration(3 * time.Second), FirstToken: Duration(time.Minute), Idle: Duration(2 * time.Minute)}
}

// NewRemote is an empty Remote with every default set.
func NewRemote() *Remote {
	return &Remote{APIVersion: APIVersion, Kind: KindRemote, Metadata: Metadata{Namespace: DefaultTeam},
		Spec: RemoteSpec{Timeouts: DefaultRemoteTimeouts(), Allow: DataPublic}}
}
