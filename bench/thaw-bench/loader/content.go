package loader

import (
	"bytes"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Names of the server's account and contents.
const (
	account   = "benchaccount"
	container = "weights"
	accessKey = "dGhhdy1iZW5jaC1oYXMtbm8tc2VjcmV0cw==" // any key: the server checks none
	weights   = "model.safetensors"
	config    = "config.json"
)

const (
	headSize = 4096
	minSize  = 1 << 20
	maxSize  = 1 << 40
)

// configJSON is stored beside the weights, as in every model's folder.
var configJSON = []byte(`{"model_type": "bench"}` + "\n")

// folder returns the name of a model with size bytes of weights; with md5 the server
// sends a digest of the whole file, as for a blob uploaded in one request.
func folder(size int64, md5 bool) string {
	s := strconv.FormatInt(size, 10)
	if md5 {
		s += "-md5"
	}
	return s
}

// parseFolder parses a folder's name.
func parseFolder(s string) (size int64, md5 bool, err error) {
	s, md5 = strings.CutSuffix(s, "-md5")
	size, err = strconv.ParseInt(s, 10, 64)
	if err == nil && (size < minSize || size > maxSize) {
		err = errors.New("too small or too large")
	}
	return size, md5, err
}

// noise is the file of which all contents are made.
type noise struct {
	path   string
	period int64

	mu   sync.Mutex // guards sums; held during a computation, so that each runs once
	sums map[int64][]byte
}

// noisePeriod exceeds the caches of processors.
const noisePeriod = 256 << 20

// makeNoise writes the file to dir; its bytes are always the same.
func makeNoise(dir string, period int64) (*noise, error) {
	n := &noise{path: filepath.Join(dir, "noise"), period: period, sums: map[int64][]byte{}}
	return n, n.make()
}

// MakeNoise writes a file for ServeBlobs.
func MakeNoise(path string) error { return (&noise{path: path, period: noisePeriod}).make() }

func (n *noise) make() error {
	f, err := os.Create(n.path)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, io.LimitReader(rand.NewChaCha8([32]byte{'t', 'h', 'a', 'w'}), n.period), make([]byte, 1<<20))
	return errors.Join(err, f.Close())
}

// openNoise opens the file of another process.
func openNoise(path string) (*noise, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if fi.Size() < minSize {
		return nil, fmt.Errorf("%s is too short", path)
	}
	return &noise{path: path, period: fi.Size(), sums: map[int64][]byte{}}, nil
}

// weightsHeader returns the start of weights of this size: a safetensors header with one
// tensor for all other bytes.
func weightsHeader(size int64) []byte {
	body := fmt.Sprintf(`{"noise":{"dtype":"U8","shape":[%d],"data_offsets":[0,%[1]d]}}`, size-headSize)
	h := make([]byte, headSize)
	binary.LittleEndian.PutUint64(h, headSize-8)
	copy(h[8:], body)
	for i := 8 + len(body); i < headSize; i++ {
		h[i] = ' '
	}
	return h
}

// section is a contiguous run of bytes, in memory or in the file.
type section struct {
	mem     []byte
	at, len int64 // in the file
}

// sections yields the bytes [from, to) of weights of this size, in sections of at most
// most bytes.
func (n *noise) sections(size, from, to, maximum int64, yield func(section) error) error {
	for from < to {
		s := section{}
		if from < headSize {
			s.mem = weightsHeader(size)[from:min(to, headSize)]
			s.len = int64(len(s.mem))
		} else {
			s.at = from % n.period
			s.len = min(to-from, n.period-s.at, maximum)
		}
		if err := yield(s); err != nil {
			return err
		}
		from += s.len
	}
	return nil
}

// read returns the bytes [from, to) of weights of this size.
func (n *noise) read(f io.ReaderAt, size, from, to int64) ([]byte, error) {
	var b bytes.Buffer
	err := n.sections(size, from, to, to-from, func(s section) error {
		if s.mem != nil {
			b.Write(s.mem)
			return nil
		}
		_, err := io.Copy(&b, io.NewSectionReader(f, s.at, s.len))
		return err
	})
	return b.Bytes(), err
}

// md5 returns the digest of weights of this size, computed once.
func (n *noise) md5(size int64) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.sums[size]; s != nil {
		return s, nil
	}
	f, err := os.Open(n.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := md5.New()
	err = n.sections(size, 0, size, n.period, func(s section) error {
		if s.mem != nil {
			h.Write(s.mem)
			return nil
		}
		_, err := io.Copy(h, io.NewSectionReader(f, s.at, s.len))
		return err
	})
	if err != nil {
		return nil, err
	}
	n.sums[size] = h.Sum(nil)
	return n.sums[size], nil
}

// probes is the number of places of a download that are compared.
const probes = 256

// check compares a downloaded file with the served bytes: its size, both ends, and one
// piece of each of 256 parts, at other places in each round.
func (n *noise) check(path string, size int64, round uint64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() != size {
		return fmt.Errorf("it has %d bytes, not %d", fi.Size(), size)
	}
	own, err := os.Open(n.path)
	if err != nil {
		return err
	}
	defer own.Close()
	const piece = 16 << 10
	r := rand.New(rand.NewPCG(round, uint64(size)))
	got := make([]byte, piece)
	for i := range probes {
		lo, hi := size*int64(i)/probes, size*int64(i+1)/probes
		at := lo
		if i == probes-1 {
			at = size - piece
		} else if i > 0 {
			at += r.Int64N(max(1, hi-lo-piece))
		}
		at = max(0, min(at, size-piece))
		want, err := n.read(own, size, at, at+piece)
		if err != nil {
			return err
		}
		if _, err := f.ReadAt(got, at); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("its bytes at %d are not those of the server", at)
		}
	}
	return nil
}
