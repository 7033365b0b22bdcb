package s3

import "testing"

// TestNoCredentialsOfAWebIdentity: without credentials the error names the variables that were to
// give them.
func TestNoCredentialsOfAWebIdentity(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "/nope", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"},
			"no credentials: the file of AWS_WEB_IDENTITY_TOKEN_FILE gave none for the role of AWS_ROLE_ARN"},
		{map[string]string{"AWS_ROLE_ARN": "x", "AWS_ACCESS_KEY_ID": "a"}, "no credentials: of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing"},
		{map[string]string{"AWS_PROFILE": "p"}, "no credentials: the profile of AWS_PROFILE is not there, or has no key"},
		{nil, "no credentials"},
	} {
		k := newKeys(func(name string) string { return c.env[name] })
		if k.none != c.want {
			t.Errorf("%v: %s", c.env, k.none)
		}
		k.close()
	}
}
