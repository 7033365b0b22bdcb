package functions

import _ "embed"

//go:generate go test -run TestSchemaFile -update .

// schema is made from the types by the tests, which fail while it is not what they say.
//
//go:embed schema.json
var schema string

// Schema is the JSON schema of the files: indented, with a newline at its end.
func Schema() []byte { return []byte(schema) }
