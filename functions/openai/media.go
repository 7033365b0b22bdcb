package openai

import (
	"bytes"
	"slices"
	"strings"
)

// nameKind is what the value of a member may be, by the member's name.
type nameKind int

const (
	plainName   nameKind = iota
	mediaName            // a string must be a data: URL
	dataName             // a string must be encoded bytes
	looseName            // may hold media: a string must be no address
	sourceName           // an object: its url, uri and path are as of media
	addressName          // an address in an object of media or a source, else a text
	embedsName           // a tensor, which engines deserialise
)

// kindOf classifies the name of a member.
func kindOf(name []byte) nameKind {
	switch string(name) {
	case "role", "content", "type", "text", "name", "id", "function", "arguments", "tool_calls", "tool_call_id", "detail":
		return plainName // of almost every message
	case "image", "video", "audio", "file", "images", "videos", "audios", "files",
		"image_url", "video_url", "audio_url", "file_url", "image_path", "video_path", "audio_path",
		"input_image", "input_video", "input_audio", "input_file", "image_data", "video_data", "audio_data",
		"ref_audio", "reference_audio", "ref_image", "reference_image", "multimodal_data":
		return mediaName
	case "data", "file_data", "b64_json":
		return dataName
	case "source":
		return sourceName
	case "url", "uri", "path", "href":
		return addressName
	}
	switch {
	case bytes.HasSuffix(name, []byte("_embeds")):
		return embedsName
	case bytes.Contains(name, []byte("image")), bytes.Contains(name, []byte("video")), bytes.Contains(name, []byte("audio")):
		return looseName
	}
	return plainName
}

// mayCarryMedia reports whether a value with such a member is to be walked. A name in data
// or an address matters only in an object that is reported by its own name.
func mayCarryMedia(name []byte) bool {
	switch kindOf(name) {
	case mediaName, looseName, sourceName, embedsName:
		return true
	}
	return false
}

// checkMedia checks a top-level member of any name: nothing in it may be an address that
// the engine would fetch or a file that it would read, and nothing a tensor. Values without
// a member that may carry media are not walked.
func (p *peeker) checkMedia(key, v []byte) error {
	kind := memberKind(key, plainName)
	switch {
	case kind == embedsName:
		return unsupported(key)
	case kind == plainName && !p.media:
		return nil
	}
	m := mediaChecker{b: v, key: key}
	_, err := m.check(0, key, kind)
	return err
}

// mediaChecker walks a value that scanValue has accepted.
type mediaChecker struct {
	b   []byte
	key []byte // the top-level name, for errors
}

// check reads the value at i of a member called name, and returns where it
// ends.
func (m *mediaChecker) check(i int, name []byte, kind nameKind) (end int, err error) {
	b := m.b
	c := b[i]
	switch c {
	case '"':
		if end, _, err = scanString(b, i); err != nil {
			return 0, err
		}
		return end, m.checkString(name, b[i:end], kind)
	case '{', '[':
	default:
		end, _, err = scanValue(b, i, 1, nil)
		return end, err
	}
	closing := c + 2
	for i = skipSpace(b, i+1); b[i] != closing; i = skipSpace(b, i) {
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
		at, as := name, kind // the elements of an array are called what the array is
		if c == '{' {
			if at, end, err = scanKey(b, i); err != nil {
				return 0, err
			}
			i = skipSpace(b, skipSpace(b, end)+1)
			as = memberKind(at, kind)
			if as == embedsName && b[i] != 'n' {
				return 0, New(UnsupportedParameter, cleanMessage(string(at))+" is not supported here: leave it out.").With(pointer(m.key))
			}
			if isCallArgument(at) {
				if i, _, err = scanValue(b, i, 1, nil); err != nil {
					return 0, err
				}
				continue
			}
		}
		if i, err = m.check(i, at, as); err != nil {
			return 0, err
		}
	}
	return i + 1, nil
}

// memberKind classifies a member of an object whose own kind is known. In an object of
// media each string is an address but for a few labels.
func memberKind(name []byte, of nameKind) nameKind {
	kind := kindOf(name)
	switch of {
	case mediaName:
		switch string(name) {
		case "type", "detail", "format", "media_type", "mime_type", "filename", "name", "title", "voice", "id", "file_id", "uuid",
			"cache_control", "transcript", "language", "context_compression":
			return plainName
		}
		if kind != dataName && kind != embedsName {
			return mediaName
		}
	case sourceName:
		if kind == addressName {
			return mediaName
		}
	default:
		if kind == dataName || kind == addressName {
			return plainName
		}
	}
	return kind
}

// isCallArgument reports whether a member holds what a model wrote for a tool or what
// describes it: engines only print it into the prompt.
func isCallArgument(name []byte) bool {
	switch string(name) {
	case "arguments", "input", "parameters", "input_schema", "metadata":
		return true
	}
	return false
}

func (m *mediaChecker) checkString(name, literal []byte, kind nameKind) error {
	text := literal[1 : len(literal)-1]
	if bytes.HasPrefix(text, []byte("data:")) {
		return nil
	}
	switch kind {
	case mediaName:
		return New(InvalidValue, cleanMessage(string(name))+" must be a data: URL: nothing is fetched for a request.").With(pointer(m.key))
	case dataName:
		// Base64 has none of these. An escape other than that of a slash hides one.
		head := text[:min(len(text), 256)]
		if bytes.ContainsAny(head, ":.~") || bytes.Contains(head, []byte(`\u`)) {
			return New(InvalidValue, cleanMessage(string(name))+" must be base64: nothing is fetched for a request.").With(pointer(m.key))
		}
	case looseName:
		if isAddress(unquoteText(literal)) {
			return New(InvalidValue, cleanMessage(string(name))+" must be no address: nothing is fetched for a request.").With(pointer(m.key))
		}
	}
	return nil
}

// isAddress reports whether a text is a URL or the path of a file.
func isAddress(text string) bool {
	text = strings.ToLower(strings.TrimSpace(text))
	prefixes := []string{"/", "./", "../", "~", `\\`, "file:", "http:", "https:", "ftp:"}
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(text, p) }) || strings.Contains(text, "://")
}
