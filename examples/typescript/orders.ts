// A producer and consumer through Amazon SQS: only the endpoint and the credentials are tenantq's.
//
//   tenantq key create orders --tenant acme --role tenant-admin --json
//   AWS_ACCESS_KEY_ID=KEY_ID AWS_SECRET_ACCESS_KEY=SECRET npm start
import {
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";

interface Order {
  id: number;
  item: string;
}

const sqs = new SQSClient({
  endpoint: process.env.TENANTQ_URL ?? "http://127.0.0.1:7070",
  region: "eu-north-1", // any: it is only part of the signature
});

const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "orders" }));

async function place(orders: Order[]): Promise<void> {
  const Entries = orders.map((order) => ({ Id: String(order.id), MessageBody: JSON.stringify(order) }));
  const { Failed = [] } = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
  if (Failed.length > 0) throw new Error(`not queued: ${Failed.map((one) => one.Message).join(", ")}`);
}

async function work(): Promise<number> {
  const { Messages = [] } = await sqs.send(
    new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 2 }),
  );
  if (Messages.length === 0) return 0;
  for (const message of Messages) {
    const order = JSON.parse(message.Body!) as Order;
    console.log(`packed ${order.item} for order ${order.id}`);
  }
  // A message that is not deleted comes again when its visibility timeout ends.
  const Entries = Messages.map((message, index) => ({ Id: String(index), ReceiptHandle: message.ReceiptHandle! }));
  await sqs.send(new DeleteMessageBatchCommand({ QueueUrl, Entries }));
  return Messages.length;
}

await place([
  { id: 1, item: "lamp" },
  { id: 2, item: "chair" },
]);
let left = 2;
while (left > 0) left -= await work();
