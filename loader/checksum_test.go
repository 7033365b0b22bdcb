package loader_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/loader/source/s3"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit/gcstest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// promisingSource is a source in memory that names a checksum of one file.
type promisingSource struct {
	*sourcetest.Memory
	name    string
	promise func(*source.File)
}

func (s promisingSource) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	plan, err := s.Memory.Plan(ctx, location, also)
	for i := range plan.Files {
		if plan.Files[i].Name == s.name {
			s.promise(&plan.Files[i])
		}
	}
	return plan, err
}

// TestKnownChecksums compares the checksums of sources with the published check values of
// their algorithms: those of the nine bytes "123456789". A file that differs in one bit
// fails.
func TestKnownChecksums(t *testing.T) {
	decode := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	md5, crc32c, crc64 := decode("25f9e794323b453885f5181f1b624d0b"), decode("e3069283"), decode("ae8b14860a799888")
	for _, c := range []struct {
		name    string
		promise func(*source.File)
	}{
		{"MD5", func(f *source.File) { f.MD5 = md5 }},
		{"CRC-32C", func(f *source.File) { f.CRC32C = crc32c }},
		{"CRC-64/NVME", func(f *source.File) { f.CRC64 = crc64 }},
		{"all three", func(f *source.File) { f.MD5, f.CRC32C, f.CRC64 = md5, crc32c, crc64 }},
		{"SHA-256", func(f *source.File) {
			f.SHA256 = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
		}},
	} {
		for content, kind := range map[string]source.Kind{"123456789": "", "123456788": source.Digest} {
			mem := &sourcetest.Memory{}
			mem.Put("mem://models/m", "model.safetensors", weights(1000, 1))
			mem.Put("mem://models/m", "vocab.txt", []byte(content))
			err := stageOnce(t, "mem", promisingSource{mem, "vocab.txt", c.promise}, "mem://models/m")
			if source.KindOf(err) != kind || kind != "" && !strings.Contains(err.Error(), "vocab.txt") {
				t.Errorf("%s of %s: %v, want kind %q", c.name, content, err, kind)
			}
		}
	}
}

// stageOnce stages a location with a new store and returns the staging's error.
func stageOnce(t *testing.T, scheme string, from loader.Source, location string) error {
	t.Helper()
	l := loader.New(loader.Options{Store: openStore(t, store.Options{}), Sources: map[string]loader.Source{scheme: from}, Retry: loader.Retry{Attempts: 2, Base: time.Millisecond, Max: time.Millisecond}})
	defer l.Close()
	s, err := l.Stage(t.Context(), location, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	checkpoint, err := s.Wait(t.Context())
	if checkpoint != nil {
		checkpoint.Lease.Release()
	}
	return err
}

// TestDamagedObject: an object that is damaged on its way is not staged, whichever
// checksum S3 or GCS keeps of it. Neither keeps an MD5: the first is encrypted under a
// key, the second composed of parts.
func TestDamagedObject(t *testing.T) {
	whole := weights(1000, 1)
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-1] ^= 1
	encode := base64.StdEncoding.EncodeToString
	crcs := map[string]string{
		"crc32c":    encode(binary.BigEndian.AppendUint32(nil, crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli)))),
		"crc64nvme": encode(binary.BigEndian.AppendUint64(nil, crc64.Checksum(whole, crc64.MakeTable(0x9a6c9329ac4bc9b5)))),
	}
	serve := func(w http.ResponseWriter, r *http.Request, content []byte) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
	inS3 := func(checksum string, content []byte) error {
		back := s3mem.New()
		if err := back.CreateBucket("weights"); err != nil {
			t.Fatal(err)
		}
		if _, err := back.PutObject("weights", "m/model.safetensors", map[string]string{}, bytes.NewReader(whole), int64(len(whole)),
			nil); err != nil {
			t.Fatal(err)
		}
		inner := gofakes3.New(back, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Amz-Server-Side-Encryption", "aws:kms")
			switch named := strings.HasSuffix(r.URL.Path, "/model.safetensors"); {
			case named && r.Method == http.MethodHead:
				w.Header().Set("X-Amz-Checksum-"+checksum, crcs[checksum])
				w.Header().Set("X-Amz-Checksum-Type", "FULL_OBJECT")
			case named:
				w.Header().Set("ETag", r.Header.Get("If-Match"))
				serve(w, r, content)
				return
			}
			inner.ServeHTTP(w, r)
		}))
		defer srv.Close()
		env := map[string]string{"AWS_ENDPOINT_URL_S3": srv.URL, "THAW_S3_ANONYMOUS": "true", "AWS_REGION": "eu-central-1"}
		from := s3.New(s3.Options{Getenv: func(k string) string { return env[k] }})
		defer from.Close()
		return stageOnce(t, "s3", from, "s3://weights/m")
	}
	inGCS := func(content []byte) error {
		srv := gcstest.New(t)
		srv.Put("m/model.safetensors", whole, "")
		srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case strings.HasSuffix(r.URL.Path, "/o"): // the listing, without MD5
				fmt.Fprintf(w, `{"items":[{"name":"m/model.safetensors","size":"%d","generation":"1700000000000002","crc32c":%q}]}`, len(whole), crcs["crc32c"])
			case strings.HasSuffix(r.URL.Path, "/model.safetensors"):
				w.Header().Set("X-Goog-Generation", "1700000000000002")
				serve(w, r, content)
			default:
				return false
			}
			return true
		})
		from := gcs.New(gcs.Options{Getenv: srv.Getenv})
		defer from.Close()
		return stageOnce(t, "gs", from, "gs://"+gcstest.Bucket+"/m")
	}
	for kind, content := range map[source.Kind][]byte{"": whole, source.Digest: damaged} {
		for name, err := range map[string]error{"S3, CRC-32C": inS3("crc32c", content), "S3, CRC-64": inS3("crc64nvme", content), "GCS, CRC-32C": inGCS(content)} {
			if source.KindOf(err) != kind {
				t.Errorf("%s: %v, want kind %q", name, err, kind)
			}
		}
	}
}
