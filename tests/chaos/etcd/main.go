// etcd, linked from its released modules: for machines that have no package of a current one.
// tests/chaos/penstock_chaos/etcd_build.py builds it; go.sum pins every byte of it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
