package functions

import (
	"strings"
	"testing"
)

func TestCheckSource(t *testing.T) {
	for _, good := range []string{
		"./tiny", "tiny", "/abs/x", "a/b", "../x", "file:///x", "models.v2/tiny", "/m/it's", `/m/a "b"`, "/m/\U0001f9d1\u200d\U0001f4bb x", "./huggingface.co/x",
		"az://acc/weights/a", "https://acc.blob.core.windows.net/c/p", "https://models.example.org/tiny",
		"s3://bucket", "s3://my.bucket-1/a/b", "gs://my_bucket/a", "hf://org/repo", "hf://org/repo@main", "hf://org/repo@refs/pr/1", "hf://org/repo@v1/sub", "hf://Qwen/Qwen2.5-0.5B",
	} {
		if message, hint := CheckSource(good); message != "" {
			t.Errorf("%s: %s (%s)", good, message, hint)
		}
	}
	for _, tc := range []struct{ in, hint string }{
		{"http://x/y", "https://"},
		{`"/m/tiny"`, "leave it out: /m/tiny"},
		{"\u201c/m/tiny\u201d", "leave it out: /m/tiny"},
		{"\u202a/m/tiny", "leave it out: /m/tiny"},
		{"/m/tiny\ufeff", "leave it out: /m/tiny"},
		{"s3a://bucket/x", "did you mean s3://bucket/x?"},
		{"gcs://bucket/x", "did you mean gs://bucket/x?"},
		{"azure://acc/c/p", "did you mean az://acc/c/p?"},
		{"abfss://acc/c/p", "did you mean az://acc/c/p?"},
		{"abfss://c@acc.dfs.core.windows.net/p/q", "did you mean az://acc/c/p/q?"},
		{"wasbs://c@acc.blob.core.windows.net", "did you mean az://acc/c?"},
		{"hf.co/org/repo:Q4_K_M", `did you mean hf://org/repo, with weights: "*Q4_K_M*" beside it? For a folder`},
		{"hf://org/repo:UD-Q4_K_XL", `did you mean hf://org/repo, with weights: "*UD-Q4_K_XL*" beside it?`},
		{"huggingface.co/org/repo:v2", "did you mean hf://org/repo@v2? A revision follows an @. For a folder"},
		{"${MODELS}/x", "write the value"},
		{"$MODELS/x", "write the value"},
		{"hf://${ORG}/x", "write the value"},
		{"{{ .Values.source }}", "write the value"},
		{"~/models/x", "write the whole path"},
		{`C:\models\x`, "/mnt/c"},
		{"file:///C:/models/x", "/mnt/c"},
		{`\\server\share`, "paths of Windows"},
		{"git@hf.co:org/repo", "hf://ORG/REPO"},
		{"huggingface://org/repo", "did you mean hf://org/repo?"},
		{"hugingface://org/repo", "did you mean hf://org/repo?"},
		{"HF://org/repo", "did you mean hf://org/repo?"},
		{"htps://host/x", "did you mean https://host/x?"},
		{"hf:org/repo", "did you mean hf://org/repo?"},
		{"hf:/org/repo", "did you mean hf://org/repo?"},
		{"s3:/bucket/x", "did you mean s3://bucket/x?"},
		{"hf://org/repo:v1", "did you mean hf://org/repo@v1?"},
		{"hf://repo", "hf://ORG/REPO"},
		{"hf://", "hf://ORG/REPO"},
		{"hf:///x", "hf://ORG/REPO"},
		{"huggingface.co/org/repo", "did you mean hf://org/repo?"},
		{"models.example.org/tiny", "did you mean https://models.example.org/tiny?"},
		{"s3://Bucket/x", "did you mean s3://bucket?"},
		{"s3:///x", "s3://BUCKET/PREFIX"},
		{"az://acc", "az://ACCOUNT/CONTAINER/PREFIX"},
		{"az://", "az://ACCOUNT/CONTAINER/PREFIX"},
		{"pvc://claim/x", "file:///absolute/path"},
		{"file://x", "file:///absolute/path"},
		{"ftp://x/y", "s3://BUCKET/PREFIX"},
		{"./w\n", "leave it out"},
		{"./w\x00", "write it again"},
		{"https://huggingface.co/o/r/resolve/main/m.gguf?download=true", "leave ?download=true out"},
		{"https://huggingface.co/o/r/resolve/main/m.gguf?download=true&sig=CANARY", "environment"},
		{"hf://datasets/org/repo", "models are read"},
		{"hf://https://huggingface.co/org/repo", "did you mean https://huggingface.co/org/repo?"},
		{"hf://org/repo/tree/main", "did you mean https://huggingface.co/org/repo/tree/main?"},
		{"hf://org/repo/blob/main/x.gguf", "did you mean https://huggingface.co/org/repo/blob/main/x.gguf?"},
		{"hf://org/repo/resolve/main/x.gguf", "did you mean https://huggingface.co/org/repo/resolve/main/x.gguf?"},
		{"hf://spaces/org/repo", "models are read"},
		{"az://acc.blob.core.windows.net/weights/m/n", "did you mean az://acc/weights/m/n?"},
		{"az://acc.dfs.core.windows.net/weights", "did you mean az://acc/weights?"},
		{"az://Acc/Weights/M", "did you mean az://acc/weights/M?"},
		{"hf://models/org/repo", "did you mean hf://org/repo?"},
		{"https://huggingface.co/o/r/commit/abc", "did you mean hf://o/r@abc?"},
		{"https://huggingface.co/o/r/discussions/3", "did you mean hf://o/r?"},
		{"hf://org/repo ", "leave it out"},
		{" ./m", "leave it out"},
		{" az://u:CANARY@acc/c/p", "leave it out"},
		{"az://u:CANARY@acc/c/*", "spec.weights"},
		{"./models/*.gguf", `spec.weights: "*.gguf"`},
		{"s3://bucket/p/*.gguf", `spec.weights: "*.gguf"`},
		{"https://h:port/x", "https://HOST/FOLDER"},
		{"s3://b?X-Amz-Signature=CANARY", "environment"},
		{"s3x://b/y?sig=CANARY", ""},
		{"azure://u:CANARY@acc/c/p", "did you mean az://acc/c/p?"},
		{"az://u:CANARY@acc/c/p", "environment"},
	} {
		message, hint := CheckSource(tc.in)
		if message == "" || !strings.Contains(hint, tc.hint) {
			t.Errorf("%s: %q, %q", tc.in, message, hint)
		}
		if strings.Contains(message+hint, "CANARY") {
			t.Errorf("%s: the secret is in %q, %q", tc.in, message, hint)
		}
	}
}
