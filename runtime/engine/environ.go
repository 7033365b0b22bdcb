package engine

import "strings"

// Environ is the environment that engines inherit: environ without possible secrets
// of the agent. It omits
//
//   - every THAW_… variable, and variables of the agent's systemd
//     unit (NOTIFY_SOCKET, LISTEN_…, SSH_AUTH_SOCK);
//   - every variable of a cloud's tools: AZURE_…, AWS_…, ARM_…, GOOGLE_…, GCP_…;
//   - every name one of whose parts between underscores is KEY, KEYS, APIKEY,
//     SECRET, SECRETS, TOKEN, PASSWORD, PASSWD, PASS, PAT, CREDENTIAL,
//     CREDENTIALS, COOKIE or SAS, or that contains CONNECTION_STRING;
//   - every value that is a URL with a password in it, or holds an account key
//     or a signature.
//
// TOKENIZERS_PARALLELISM stays. A model whose engine needs such a variable sets it in
// its env.
func Environ(environ []string) []string {
	out := make([]string, 0, len(environ))
	for _, kv := range environ {
		k, v, ok := strings.Cut(kv, "=")
		if ok && k != "" && !isSecret(k, v) {
			out = append(out, kv)
		}
	}
	return out
}

func isSecret(name, value string) bool {
	n := strings.ToUpper(name)
	for _, p := range [...]string{"THAW_", "AZURE_", "AWS_", "ARM_", "GOOGLE_", "GCP_", "LISTEN_"} {
		if strings.HasPrefix(n, p) {
			return true
		}
	}
	if n == "NOTIFY_SOCKET" || n == "SSH_AUTH_SOCK" || strings.Contains(n, "CONNECTION_STRING") {
		return true
	}
	for part := range strings.SplitSeq(n, "_") {
		switch part {
		case "KEY", "KEYS", "APIKEY", "SECRET", "SECRETS", "TOKEN", "PASSWORD", "PASSWD", "PASS", "PAT",
			"CREDENTIAL", "CREDENTIALS", "COOKIE", "SAS":
			return true
		}
	}
	if _, after, ok := strings.Cut(value, "://"); ok {
		host, _, _ := strings.Cut(after, "/")
		if user, _, ok := strings.Cut(host, "@"); ok && strings.Contains(user, ":") {
			return true
		}
	}
	return strings.Contains(value, "AccountKey=") || strings.Contains(value, "SharedAccessSignature=") || strings.Contains(value, "&sig=")
}

func lookupEnv(environ []string, key string) (v string) {
	for _, kv := range environ {
		if k, val, ok := strings.Cut(kv, "="); ok && k == key {
			v = val
		}
	}
	return v
}

// lastWins drops all but the last value of each variable, keeping order.
func lastWins(env []string) []string {
	last := make(map[string]int, len(env))
	for i, kv := range env {
		k, _, _ := strings.Cut(kv, "=")
		last[k] = i
	}
	out := env[:0:0]
	for i, kv := range env {
		if k, _, _ := strings.Cut(kv, "="); last[k] == i {
			out = append(out, kv)
		}
	}
	return out
}
