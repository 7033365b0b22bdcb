// Package endpoints lists the paths that are proxied to engines, and what is known of each.
package endpoints
