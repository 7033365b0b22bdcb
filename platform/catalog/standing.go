package catalog

import (
	"github.com/thaw-dev/thaw/functions"
)

// FileProblem is why the file of a function cannot be used as it is now, while its version
// before serves on; "" if it can.
func (c *Catalog) FileProblem(name functions.Name) string {
	v := c.now()
	if p, bad := v.unused[v.docs[name.WithoutAdapter().String()].File]; bad {
		return p.Error() + "; the version before it serves on"
	}
	return ""
}

// FunctionsOf are the functions that the file serves, by name.
func (c *Catalog) FunctionsOf(file string) []functions.Name {
	docs := functions.Filter(c.Documents(), func(d Document) bool { return d.File == file })
	return functions.ConvertAll(docs, Document.FullName)
}
