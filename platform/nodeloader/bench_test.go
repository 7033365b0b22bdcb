package nodeloader

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// BenchmarkReady measures the time of a READY status through the loader: from the shim's
// write on the socket to the report for the controller.
func BenchmarkReady(b *testing.B) {
	dir := b.TempDir()
	sh, err := nodestore.Open(nodestore.Options{Node: "n", Data: dir, Copies: true})
	if err != nil {
		b.Fatal(err)
	}
	defer sh.Close()
	received := make(chan struct{}, 1)
	d := New(Options{Node: "n", Dir: dir, Store: sh, Lines: 1 << 30, IdentifyPod: func(*net.UnixConn) (string, error) { return "u", nil },
		Send: func(u controlstream.Report) {
			if len(u.Pods) > 0 && !u.Pods[0].Gone {
				received <- struct{}{}
			}
		}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	<-d.Ready()
	conn, err := net.Dial("unix", filepath.Join(dir, SocketPath))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	message := controlstream.FromPod{Hello: &controlstream.Shim{PodIP: "10.0.0.7", Port: 8080}}
	in := jsonsocket.NewConn(conn, controlstream.MaxLine)
	if err := in.Send(message); err != nil {
		b.Fatal(err)
	}
	var m controlstream.ToPod
	if err := in.Receive(&m); err != nil || m.Welcome == nil {
		b.Fatal(m, err)
	}
	st := functions.ReplicaStatus{State: functions.Ready, Endpoint: "http://10.0.0.7:8080", Phases: []functions.Span{{Phase: functions.PhaseStage}, {Phase: functions.PhaseSpawn}, {Phase: functions.PhaseLoad}, {Phase: functions.PhaseWarmup}}}
	b.ResetTimer()
	for b.Loop() {
		if err := in.Send(controlstream.FromPod{Status: &st}); err != nil {
			b.Fatal(err)
		}
		<-received
	}
}
