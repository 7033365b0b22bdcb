package catalog

// foreignResources are foreignKeys below resources.
var foreignResources = map[string]string{
	"limits": "gpus, memory and cpu stand in resources themselves", "requests": "gpus, memory and cpu stand in resources themselves",
	"nvidia.com/gpu": "did you mean gpus?", "amd.com/gpu": "did you mean gpus?", "vram": "did you mean gpuMemory?", "ram": "did you mean memory?",
}

// foreignKeys are keys of other systems' files, in small letters, with what a model file has.
var foreignKeys = map[string]string{
	"model": "did you mean source?", "repo": "did you mean source?", "uri": "did you mean source?", "storageuri": "did you mean source?",
	"replicas":    "did you mean scale: {min: N, max: N}?",
	"minreplicas": "did you mean scale: {min: N}?", "maxreplicas": "did you mean scale: {max: N}?",
	"maxmodellen": engineOptions, "contextlength": engineOptions, "context": engineOptions, "contextsize": engineOptions, "numctx": engineOptions,
	"dtype": engineOptions, "quantization": engineOptions, "parameters": engineOptions, "chattemplate": engineOptions, "template": engineOptions,
	"tensorparallel": engineOptions, "tensorparallelsize": engineOptions, "gpumemoryutilization": engineOptions, "kvcachedtype": engineOptions,
	"command": "engine: command, and its argv in args", "port": "engine: command, with {port} in args",
	"cmd":        "engine: command, and its argv in args",
	"entrypoint": "engine: command, and its argv in args",
	"gpu":        "did you mean resources: {gpus: N}?", "gpus": "did you mean resources: {gpus: N}?", "gpucount": "did you mean resources: {gpus: N}?",
	"memory": "did you mean resources: {memory: SIZE}?", "cpu": "did you mean resources: {cpu: N}?",
	"gpumemory": "did you mean resources: {gpuMemory: SIZE}?", "vram": "did you mean resources: {gpuMemory: SIZE}?",
	"ttl": idleTime, "keepalive": idleTime, "idletimeout": idleTime, "idle": idleTime, "unloadafter": idleTime, "scaledowndelay": idleTime,
	"concurrency": targetOf, "containerconcurrency": targetOf, "maxconcurrency": targetOf, "parallel": targetOf,
	"timeout": "did you mean deadlines: {start: …, firstToken: …} or queue: {wait: …}?",
	"loras":   loras, "lora": loras, "loramodules": loras, "adapter": loras,
	"image":        "thaw deploy --to knative --image ENGINE=IMAGE names it; on a machine the installed engine is used",
	"nodeselector": podOnly, "tolerations": podOnly, "affinity": "spec.pod.nodeSelector chooses nodes",
	"runtimeclassname":   podOnly,
	"serviceaccountname": podOnly, "volumes": volumes, "volumemounts": volumes,
	"imagepullsecrets": podOnly,
	"aliases":          ownName, "alias": ownName, "modelname": ownName, "servedmodelname": ownName,
	"revision": "it belongs to the source: hf://ORG/REPO@REVISION", "branch": "it belongs to the source: hf://ORG/REPO@REVISION",
	"hftoken": credentials, "token": credentials, "secret": credentials, "secrets": credentials, "apikey": credentials, "credentials": credentials,
	"annotations": "a model has labels alone", "description": "write it as a comment: # …", "enabled": "take the file away, or thaw rm NAME",
}

const (
	engineOptions = "an engine's own options go into args"
	idleTime      = "did you mean scale: {idle: 5m}?"
	targetOf      = "did you mean scale: {target: N}, the requests that a replica serves at once?"
	loras         = "did you mean adapters: [{name: NAME, source: SOURCE}]?"
	podOnly       = "it stands in spec.pod"
	volumes       = "weights come from spec.source; a folder of the nodes is one that the loader's --folder names"
	ownName       = "clients call a model by metadata.name; a Router gives it another name"
	credentials   = "a model file holds no secrets: credentials come from the environment of the server"
)
